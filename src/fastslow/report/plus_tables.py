"""FSG-plus beside STE on the test set: on one recipe, against STE's better one, and in fewer epochs."""

from __future__ import annotations

from collections.abc import Iterator

from ..recipes import plus
from ..recipes.base import PAPER_EPOCHS
from .document import Table
from .results import Group, Results
from .tables import STE, start_words
from .words import NONE, data_name, difference, group_value, model_name, p_value, pair_words, protocol_name


def _groups(results: Results) -> dict[str, Group]:
    return {setting.name: results.group(setting) for setting in plus.settings()}


def _beside_ste(results: Results) -> Iterator[tuple[str, str, Group, Group]]:
    """Network, recipe, and what fsg-plus and STE have there from one start."""
    settings = {setting.name: setting for setting in plus.settings()}
    for name, setting in settings.items():
        model, protocol, method = name.split("/")
        if method == STE:
            continue
        ste = settings[f"{model}/{protocol}/{STE}"]
        straight = {group.start: group for group in results.groups(ste)}
        for group in results.groups(setting):
            beside = straight.get(group.start, Group(ste, (), 0)) if group.n else results.group(ste)
            yield model, protocol, group, beside


def plus_table(results: Results) -> Table:
    """fsg-plus and STE, pair by pair, with the time that both took."""
    rows = []
    for model, protocol, group, ste in _beside_ste(results):
        against = group.against(ste)
        start = start_words(results, group) if len(results.groups(group.setting)) > 1 else ""
        rows.append(
            (
                f"{model_name(model)}, {data_name(group.setting.config.data)}, {protocol_name(protocol)}{start}",
                group_value(ste),
                group_value(group),
                str(group.n) if group.n else NONE,
                difference(against),
                pair_words(against),
                f"{group.mean('train_loss'):.3f} / {ste.mean('train_loss'):.3f}" if against else NONE,
                f"{group.mean('seconds') / ste.mean('seconds'):.2f}" if against else NONE,
            )
        )
    columns = ("Setting", "STE, last epoch", "FSG-plus, last epoch", "n", "Difference [95 %]", "Paired t-test")
    columns = (*columns, "Training loss, FSG-plus / STE", "Time on a shared device, times STE")
    return Table("The same recipe, seeds and data for both", columns, tuple(rows), labels=1)


def readme_table(results: Results) -> Table:
    """The same in short, one row a recipe that both were run on, behind the float network that they start from."""
    rows = []
    for model, protocol, group, ste in _beside_ste(results):
        against = group.against(ste)
        if against is None:
            continue
        start = results.float_accuracies.get(group.weights)
        rows.append(
            (
                f"{model_name(model)}, {data_name(group.setting.config.data)}",
                protocol_name(protocol),
                NONE if start is None else f"{start:.2f}",
                group_value(ste),
                group_value(group),
                difference(against),
                NONE if against.p is None else p_value(against.p),
                str(against.n),
            )
        )
    columns = ("1-bit weights", "Recipe", "Float", "STE", "FSG-plus", "Difference [95 %]", "Paired t-test", "n")
    note = "" if rows else "No recipe has runs of both yet."
    return Table("Our gradient, FSG-plus: test accuracy, last epoch", columns, tuple(rows), labels=2, note=note)


def plus_recipes_table(results: Results) -> Table:
    """fsg-plus on its recipe against STE on each: what suits one may not suit the other."""
    groups = _groups(results)
    model, protocol = plus.NETWORKS[0][0], "adam-strong"
    ours = groups[f"{model}/{protocol}/fsg-plus"]
    rows = []
    for other in (protocol, "adam-distill"):
        ste = groups[f"{model}/{other}/{STE}"]
        against = ours.against(ste)
        rows.append((protocol_name(other), group_value(ste), difference(against), pair_words(against)))
    title = f"{model_name(model)}: FSG-plus with “{protocol_name(protocol)}” ({group_value(ours)}) against STE"
    return Table(
        title, ("STE's recipe", "STE, last epoch", "Difference [95 %]", "Paired t-test"), tuple(rows), labels=1
    )


def plus_short_table(results: Results) -> Table:
    """fsg-plus in fewer epochs against STE in all of them. Seeds are shared, the number of epochs is not."""
    groups = _groups(results)
    rows = []
    for model, data, _ in plus.SHORTENED:
        short, ours, full = (
            groups[f"{model}/{run}"] for run in (f"adam-short/{STE}", "adam-short/fsg-plus", f"adam-strong/{STE}")
        )
        against = ours.against(full)
        network = f"{model_name(model)}, {data_name(data)}"
        values = (group_value(group) for group in (short, ours, full))
        rows.append((network, *values, difference(against), pair_words(against)))
    few, many = plus.SHORT["epochs"], PAPER_EPOCHS
    columns = ("Network", f"STE, {few} epochs", f"FSG-plus, {few} epochs", f"STE, {many} epochs")
    columns = (*columns, f"FSG-plus in {few} − STE in {many} [95 %]", "Paired t-test")
    return Table("What a third of the epochs is worth", columns, tuple(rows), labels=1)
