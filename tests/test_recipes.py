"""Recipes: what the paper's protocol is, run by run."""

from __future__ import annotations

import dataclasses

import pytest

from fastslow import cli
from fastslow.methods import METHODS, check_fields
from fastslow.models import list_models
from fastslow.recipes import RECIPES, research
from fastslow.recipes.base import shorter
from fastslow.report.research import change
from fastslow.training.config import RunConfig


def settings_of(name: str) -> dict[str, RunConfig]:
    return {setting.name: setting.config for setting in RECIPES[name].settings()}


@pytest.mark.parametrize("name", list(RECIPES))
def test_settings_are_distinct_and_can_be_built(name: str) -> None:
    recipe = RECIPES[name]
    settings = recipe.settings()
    assert settings
    assert len({s.name for s in settings}) == len(settings)
    assert len({s.config.key for s in settings}) == len(settings)
    for setting in settings:
        config = setting.config
        assert config.seed == 0
        assert setting.seeds >= 1
        assert config.model in list_models()
        assert setting.run(2) == dataclasses.replace(config, seed=2)
        if config.method is not None:
            assert config.method in METHODS
            check_fields(config.method, config.method_fields)


def test_paper_protocol() -> None:
    config = settings_of("table1")["resnet20/adam/fsg"]
    expected = RunConfig(
        model="resnet20",
        data="cifar10",
        weights="name:resnet20_cifar10",
        method="fsg",
        optimizer="adam",
        lr=1e-3,
        weight_decay=0.0,
        schedule="step",
        step_epochs=30,
        step_factor=0.1,
        epochs=100,
        batch_size=128,
        skip=("first-and-last",),
        precision="tf32",
    )
    assert config == expected


def test_table1_has_the_rows_of_the_paper_and_multifc() -> None:
    names = settings_of("table1")
    for model in ("resnet20", "resnet32", "resnet44"):
        for optimizer in ("sgd", "adam"):
            for method in ("ste", "fcgrad", "multifc", "lstmfc", "fsg"):
                assert f"{model}/{optimizer}/{method}" in names
    assert {"resnet20/adam/fsg-code", "resnet20/adam/fsg-weight"} <= names.keys()


def test_mini_is_tables_1_and_4_in_small() -> None:
    small, tables = settings_of("mini"), settings_of("table1") | settings_of("table4")
    wanted = {name for name in tables if name.startswith("resnet20/adam/")}
    assert small.keys() == wanted | {"resnet20/adam/fsg-plus"}
    for name in wanted:
        changes = {"data": "mini", "precision": "float32"}
        assert small[name] == shorter(dataclasses.replace(tables[name], **changes), 10)


def test_variants_change_what_they_say() -> None:
    paper, variants = settings_of("table1"), settings_of("table1-variants")
    assert variants["resnet20/adam-all/ste"] == dataclasses.replace(paper["resnet20/adam/ste"], skip=())
    code = variants["resnet20/adam-code/fsg-code"]
    assert code.model_fields == {"bn_before_fc": True}
    assert code.skip == ()
    assert variants["resnet20/sgd-tuned/ste"].lr == 0.1
    assert variants["resnet20/momentum/ste"].optimizer == "momentum"
    assert variants["resnet20/momentum/ste"].lr == 0.03
    assert settings_of("table2-variants")["resnet56/adam-lr0.1/fsg"].lr == 0.1
    assert settings_of("table2")["resnet56/adam/fsg"].lr == 1e-3


def test_figures_share_the_runs_of_the_tables() -> None:
    table1 = {config.key for config in settings_of("table1").values()}
    assert {config.key for config in settings_of("curves").values()} <= table1
    assert settings_of("beta")["resnet20/beta/0.3"] == settings_of("table1")["resnet20/adam/fsg"]
    assert settings_of("length")["resnet56/length/6"] == settings_of("table2")["resnet56/adam/fsg"]
    assert settings_of("table3")["resnet44/adam/mamba"] == settings_of("table1")["resnet44/adam/fsg"]
    assert settings_of("length")["resnet20/length/3"].method_fields == {"length": 3}


def test_learning_rates_are_chosen_without_the_test_set() -> None:
    assert all(config.holdout == 5000 for config in settings_of("lr-sweep").values())


def test_research_never_sees_the_test_set_and_changes_one_thing() -> None:
    settings = settings_of("research")
    for name, config in settings.items():
        start = "none" if "/scratch/" in name else "name:resnet20_cifar10_45k"
        assert (config.holdout, config.weights) == (5000, start), name
        assert name.split("/")[-1].startswith(str(config.method))
    names = {idea.name for idea in research.IDEAS}
    assert all(idea.against is None or idea.against in names for idea in research.IDEAS)
    usual = settings["resnet20/adam-cosine/ste"]
    assert usual == dataclasses.replace(settings["resnet20/base/ste"], schedule="cosine")
    assert settings["resnet20/ema-0.999/ste"] == dataclasses.replace(usual, ema=0.999)
    assert settings["resnet20/adam-cosine/multifc"] == dataclasses.replace(usual, method="multifc")
    assert change(research.IDEAS[2], 100) == "lr 0.0003 (against adam-cosine/ste)"
    restarts = next(idea for idea in research.IDEAS if idea.name == "restarts/ste")
    assert change(restarts, 62) == "schedule restarts, epochs 62 (against adam-cosine/ste)"
    assert change(restarts, 30) == "schedule restarts (against adam-cosine/ste)"  # screened, as all of them


def test_the_start_of_research_is_what_pretrain_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr("fastslow.cli_support.start", lambda config, *rest: seen.append(config))
    monkeypatch.setattr("sys.argv", ["fastslow", "pretrain", "--holdout", "5000", "--precision", "tf32"])
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == list(settings_of("research-float").values())


def test_shorter_keeps_the_schedules_shape() -> None:
    config = settings_of("table1")["resnet20/adam/ste"]
    half = shorter(config, 50)
    assert (half.epochs, half.step_epochs) == (50, 15)
    assert shorter(config, 1).step_epochs == 1
    assert shorter(RunConfig(epochs=10, warmup_epochs=5), 3).warmup_epochs == 2
