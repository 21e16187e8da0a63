"""From recipes to a list of runs: order, shards, and what --only chooses."""

from __future__ import annotations

import pytest

from fastslow.reproduce.plan import plan


def test_seeds_are_the_outer_order_and_configs_come_once() -> None:
    runs = plan(["curves", "table1"], only=["resnet44/adam"], seeds=2)
    assert [run.name for run in runs][:3] == [
        "resnet44/adam/ste/seed0",
        "resnet44/adam/fsg/seed0",
        "resnet44/adam/multifc/seed0",
    ]
    assert [run.config.seed for run in runs] == [0] * 5 + [1] * 5


def test_shards_are_the_whole_without_overlap() -> None:
    whole = plan(["table1"])
    shards = [plan(["table1"], shard=f"{i}/3") for i in (1, 2, 3)]
    keys = [run.config.key for shard in shards for run in shard]
    assert sorted(keys) == sorted(run.config.key for run in whole)
    # Five shards of five seeds: one seed a machine, every method on each.
    by_seed = plan(["table1"], only=["resnet20/adam"], shard="2/5")
    assert {run.config.seed for run in by_seed} == {1}
    assert len(by_seed) == 7


@pytest.mark.parametrize(
    ("only", "count"),
    [(["resnet20/adam"], 7), (["resnet20/adam*"], 7), (["fsg", "ste"], 12), (["resnet*/sgd/ste"], 3), (["seed0"], 34)],
)
def test_only_matches_whole_parts(only: list[str], count: int) -> None:
    assert len(plan(["table1"], only=only, seeds=1)) == count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["resnet21"]}, "--only resnet21"),
        ({"only": ["ste", "fgs"]}, "--only fgs"),
        ({"shard": "4/3"}, "--shard 4/3"),
        ({"shard": "x"}, "--shard x"),
        ({"seeds": 0}, "--seeds 0"),
    ],
)
def test_what_cannot_be_planned(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(["table1"], **options)  # pyright: ignore[reportArgumentType]


def test_unknown_recipe_and_everything() -> None:
    with pytest.raises(ValueError, match="did you mean 'table1'"):
        plan(["tabel1"])
    everything = plan(["all"])
    assert len({run.config.key for run in everything}) == len(everything)
    smoke = {run.config.key for run in plan(["smoke"])}
    assert not any(run.config.key in smoke for run in everything)  # its numbers mean nothing


def test_other_epochs_are_another_run() -> None:
    (short,) = plan(["table1"], only=["resnet20/adam/ste/seed0"], epochs=10, changes={"precision": "bf16"})
    (whole,) = plan(["table1"], only=["resnet20/adam/ste/seed0"])
    assert (short.config.epochs, short.config.step_epochs, short.config.precision) == (10, 3, "bf16")
    assert short.config.key != whole.config.key


def test_no_two_runs_of_a_plan_are_called_alike() -> None:
    runs = plan(["all"])
    assert len({run.name for run in runs}) == len({run.config.key for run in runs}) == len(runs)
