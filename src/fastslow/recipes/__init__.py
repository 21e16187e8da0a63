"""Recipes: one module for each table or figure of the paper, functions that return the runs it is made of.

``fastslow reproduce NAME`` runs one, ``fastslow report`` shows what has been run.
"""

from __future__ import annotations

from ..registry import Registry
from . import curves, floats, mini, overhead, plus, research, smoke, sota, sweeps, table1, table2, table3, table4
from .base import Recipe as Recipe
from .base import Setting as Setting

RECIPES: Registry[Recipe] = Registry("recipe")
for _recipe in (
    Recipe("table1", "Table 1", "CIFAR-10: ResNet-20/32/44, SGD and Adam", table1.settings),
    Recipe("table1-variants", "Table 1, variants", "all layers binary, authors' network, tuned SGD", table1.variants),
    Recipe("table2", "Table 2", "CIFAR-100: ResNet-56/110, SGD and Adam", table2.settings),
    Recipe("table2-variants", "Table 2, variants", "the appendix's lr, all layers binary", table2.variants),
    Recipe("table3", "Table 3", "the slow-net: LSTM against Mamba", table3.settings),
    Recipe("table4", "Table 4", "other methods under the same short protocol", table4.settings),
    Recipe("mini", "Tables 1 and 4 in small", "ResNet-20 on the embedded images, for a CPU", mini.settings),
    Recipe("sota", "Published recipes", "each method from scratch as its authors train it", sota.published),
    Recipe("compared", "Compared from scratch", "400 epochs for all, real and 1-bit activations", sota.compared),
    Recipe("overhead", "Overhead", "seconds an epoch; run with --jobs 1", overhead.settings),
    Recipe("curves", "Loss curves", "ResNet-44, SGD and Adam", curves.settings),
    Recipe("beta", "Sweep of beta", "the weight of the slow gradient", sweeps.beta),
    Recipe("length", "Sweep of l", "the length of the history", sweeps.length),
    Recipe("lr-sweep", "Learning rates", "STE with SGD, on held-out training images", table1.lr_sweep),
    Recipe("plus", "fsg-plus", "fsg-plus against STE on the strongest recipe", plus.settings),
    Recipe("research", "Validation", "recipes and gradients, on held-out training images", research.settings),
    Recipe("research-float", "Validation, start", "the float network of these, on 45,000 images", research.start),
    Recipe("smoke", "Smoke test", "four tiny runs on the embedded images, in a minute", smoke.settings),
    Recipe("float", "Float baselines", "the networks that binary training starts from", floats.settings),
):
    RECIPES.add(_recipe.name, _recipe)
