"""Children that start before the recipe is read: used by the first stages, and never left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.app import build as app
from pellucid.app.site import Site, create_site, open_site
from pellucid.build import stages
from pellucid.errors import BuilderCrashedError, NotFoundError, RecipeError
from pellucid.testing.builds import EventList, write_recipe

pytestmark = pytest.mark.e2e


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return create_site(tmp_path / "site", node="test1")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[stages.Opened]:
    """Every child that is started from here on."""
    found: list[stages.Opened] = []
    start = stages.start

    def kept(entry: str, progress: stages.Progress) -> stages.Opened:
        found.append(start(entry, progress))
        return found[-1]

    monkeypatch.setattr(stages, "start", kept)
    return found


def are_gone(started: list[stages.Opened]) -> bool:
    return all(
        one.child.process.returncode is not None and not Path(one.scratch.name).exists() for one in started
    )


def test_a_build_starts_no_child_that_it_does_not_use(
    site: Site, tmp_path: Path, started: list[stages.Opened]
) -> None:
    app.build(site, write_recipe(tmp_path / "recipe", "credit_like"))
    assert [one.child.process.returncode for one in started] == [
        0,
        0,
    ]  # prepare; compile, of which a fork records golden cases
    assert are_gone(started)


def test_a_recipe_that_does_not_hold_leaves_none(
    site: Site, tmp_path: Path, started: list[stages.Opened]
) -> None:
    (tmp_path / "recipe.yaml").write_text("name: [")
    with pytest.raises(RecipeError):
        app.build(site, tmp_path / "recipe.yaml")
    assert len(started) == 2
    assert are_gone(started)


def test_the_first_two_load_while_the_site_is_opened(
    site: Site, tmp_path: Path, started: list[stages.Opened]
) -> None:
    seen: list[int] = []

    def opened() -> Site:
        seen.append(len(started))
        return site

    app.build(opened, write_recipe(tmp_path / "recipe", "credit_like"))
    assert seen == [2]


def test_a_site_that_is_none_leaves_none(tmp_path: Path, started: list[stages.Opened]) -> None:
    with pytest.raises(NotFoundError, match=r"pellucid\.toml"):
        app.build(lambda: open_site(tmp_path), tmp_path / "recipe.yaml")
    assert len(started) == 2
    assert are_gone(started)


def test_one_that_died_while_it_waited_is_an_outcome(
    site: Site, tmp_path: Path, started: list[stages.Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Settled(EventList):
        def settle_after(self, failed: Exception) -> None:
            settled.append(len(self.events))

        def settle(self) -> None:
            assert settled

    settled: list[int] = []
    recorder = Settled()
    monkeypatch.setattr(app, "_Recorder", lambda site: recorder)
    start = stages.start

    def dying(entry: str, progress: stages.Progress) -> stages.Opened:
        opened = start(entry, progress)
        opened.child.process.kill()
        return opened

    monkeypatch.setattr(stages, "start", dying)
    with pytest.raises(BuilderCrashedError, match="signal SIGKILL"):
        app.build(site, write_recipe(tmp_path / "recipe", "credit_like"))
    assert [data["outcome"] for _, data in recorder.events] == [BuilderCrashedError.code]
    assert settled == [1]
    assert are_gone(started)
