"""Networks to and from the Hugging Face hub: safetensors and JSON, no pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from .deploy.engine import Engine, load_packed
from .deploy.format import read
from .files import how_to_resume
from .model_card import model_card

if TYPE_CHECKING:
    from torch import nn

    from .deploy.pack import Packed

PACKED, CARD = "model.safetensors", "README.md"
CONFIG, LATENT, RESULT = "config.json", "weights.safetensors", "result.json"  # of a run, to train on


class HubError(ValueError):
    """What the hub, or the way to it, refused."""


def push_to_hub(
    source: str | Path | Packed,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    licence: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Put a trained network on the hub in one commit, with a model card; returns the commit's address.

    Args:
        source: the folder of a finished run, or a packed file. A run also brings its latent weights, so that
            ``from_pretrained(..., torch=True)`` can go on from it.
        repo_id: ``user/name``; the repository is made if it isn't there.
        private: whether a new repository is.
        revision: the branch to commit to; None is the main one.
        message: of the commit.
        licence: of the model, as the hub spells it (``"mit"``), for the card.
        token: a token that may write; None takes the one that `hf auth login` or HF_TOKEN left.
        endpoint: another hub than HF_ENDPOINT names.
    """
    path = Path(source) if isinstance(source, str | Path) else source.path
    hub = _library()
    from huggingface_hub.utils import validate_repo_id

    with _one_sentence(repo_id, revision), tempfile.TemporaryDirectory() as folder:
        validate_repo_id(repo_id)
        files = _files(path, Path(folder))
        card = model_card(read(files[PACKED]), repo_id, licence, LATENT in files)
        operations = [hub.CommitOperationAdd(name, file) for name, file in files.items()]
        operations.append(hub.CommitOperationAdd(CARD, card.encode()))
        api = hub.HfApi(endpoint=_endpoint(endpoint), token=token, library_name="fastslow")
        api.create_repo(repo_id, private=private, exist_ok=True)
        said = message or f"Upload {path.name} with fastslow"
        return str(api.create_commit(repo_id, operations, commit_message=said, revision=revision).commit_url)


@overload
def from_pretrained(
    repo_id: str,
    *,
    revision: str | None = ...,
    torch: Literal[False] = ...,
    token: str | None = ...,
    endpoint: str | None = ...,
    cache_dir: str | Path | None = ...,
    backend: str | None = ...,
    threads: int | None = ...,
) -> Engine: ...


@overload
def from_pretrained(
    repo_id: str,
    *,
    revision: str | None = ...,
    torch: Literal[True],
    token: str | None = ...,
    endpoint: str | None = ...,
    cache_dir: str | Path | None = ...,
) -> nn.Module: ...


def from_pretrained(
    repo_id: str,
    *,
    revision: str | None = None,
    torch: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    cache_dir: str | Path | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """A network from the hub: the engine, which needs no torch, or with ``torch=True`` the binary torch network.

    Args:
        repo_id: ``user/name``, as given to :func:`push_to_hub`.
        revision: a branch, a tag or, to get the same file for ever, a commit.
        torch: the network with its latent weights, in evaluation mode, ready for ``fs.optimizer``.
        token: for private repositories; None takes the one that `hf auth login` or HF_TOKEN left.
        endpoint: another hub than HF_ENDPOINT names.
        cache_dir: where downloads are kept, if not where the hub's library keeps them.
        backend, threads: of the engine, as for :func:`load_packed`.
    """
    hub = _library()

    def fetch(name: str) -> Path:
        with _one_sentence(repo_id, revision, name):
            return Path(
                hub.hf_hub_download(
                    repo_id,
                    name,
                    revision=revision,
                    token=token,
                    endpoint=_endpoint(endpoint),
                    cache_dir=cache_dir,
                    library_name="fastslow",
                )
            )

    if not torch:
        return load_packed(fetch(PACKED), backend, threads)
    from .shipping import load_shipped

    return load_shipped(fetch(CONFIG), fetch(LATENT), classes=read(fetch(PACKED)).graph.output_shape()[0])


def _files(source: Path, folder: Path) -> dict[str, Path]:
    """What goes to the hub, by its name there."""
    if source.is_file():
        read(source)  # a packed file, or a sentence that says what it is instead
        return {PACKED: source}
    from .shipping import pack_run
    from .training.config import published
    from .training.run import RunFolder

    run = RunFolder.open(source)
    result = run.result()
    if result is None:
        raise HubError(f"{source} isn't finished; continue it with {how_to_resume(source)}, then push it")
    files = {PACKED: folder / PACKED, LATENT: source / LATENT, CONFIG: folder / CONFIG, RESULT: folder / RESULT}
    pack_run(source, files[PACKED])
    files[CONFIG].write_text(json.dumps(published(result["config"]), indent=1) + "\n")
    files[RESULT].write_text(json.dumps({**result, "config": published(result["config"])}, indent=1) + "\n")
    return files


def _endpoint(given: str | None) -> str | None:
    return given or os.environ.get("HF_ENDPOINT") or None


def _library() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise HubError(f"the hub needs the package {error.name}: pip install 'fastslow[hub]'") from error
    return huggingface_hub


@contextmanager
def _one_sentence(repo_id: str, revision: str | None = None, name: str | None = None) -> Iterator[None]:
    """What the hub's library raises, as one sentence that says what to do."""
    from huggingface_hub import errors

    where = repo_id if revision is None else f"{repo_id} at {revision}"
    try:
        yield
    except errors.HFValidationError as error:
        raise HubError(f"{repo_id!r} is no name on the hub; write user/name") from error
    except errors.GatedRepoError as error:
        raise HubError(f"{repo_id} is gated: ask for access on its page, then log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"the hub has no {repo_id} that this token may see; check the name, or log in with `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repo_id} has no revision {revision}; give a branch, a tag or a commit") from error
    except errors.LocalEntryNotFoundError as error:
        raise HubError(f"{name} of {where} is not in the cache, and the hub can't be reached: connect first") from error
    except errors.EntryNotFoundError as error:
        fix = "it was pushed from a packed file: load it without torch=True" if name in (CONFIG, LATENT) else ""
        raise HubError(f"{where} has no {name}; {fix or 'was it pushed with fastslow?'}") from error
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        fix = "log in with `hf auth login`, or set HF_TOKEN" if code in (401, 403) else "try again later"
        raise HubError(f"the hub answered {code} for {where}; {fix}") from error
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in ("httpx", "httpx2", "requests", "huggingface_hub") and not isinstance(
            error, RuntimeError | ConnectionError | TimeoutError
        ):
            raise  # ours, not the hub's
        raise HubError(f"the hub can't be used for {where}: {' '.join(str(error).split())[:200]}") from error
