"""What a run is made of, checked before anything starts."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.core.capabilities import refined
from tacit.core.method import Method
from tacit.core.settings import reason, settings_of
from tacit.core.trial import check_method, check_settings
from tacit.data.protocols import Protocol
from tacit.errors import UserError, unknown
from tacit.evaluation import metrics
from tacit.privacy.mechanisms import MECHANISMS


class Ldp(BaseModel):
    """Noise on every upload: its strength as a scale, or as the ε that the whole run may cost a client."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = "laplace"  # a mechanism by name or `module:Class`
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def check(self) -> None:
        """Check which options go together."""
        MECHANISMS.find(self.kind).check(self.clip, self.scale, self.epsilon)


class Dp(BaseModel):
    """Noise that the clients of a secure sum share: its strength, or the ε that the whole run may cost a client."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # L2 bound on a client's upload
    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # on the sum, in units of clip
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def check(self, secure: bool, ldp: bool) -> None:
        """Check which options go together."""
        if not secure or ldp:
            raise UserError("dp: noise that clients share needs --secure and excludes --ldp")
        if (self.noise is None) == (self.epsilon is None):
            raise UserError("dp: write either noise=…, on the sum in units of clip, or epsilon=…, what a run may cost")


class RunConfig(BaseModel):
    """Everything that decides a run's outcome, and where it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    data: str = "ml-100k"
    protocol: Protocol = "strict"
    seed: Annotated[int, Field(ge=0)] = 0
    settings: dict[str, Any] = Field(default_factory=dict)  # of the method, --set
    rounds: Annotated[int, Field(ge=1)] | None = None  # the method's own where None
    clients: Annotated[int, Field(ge=0)] = 0  # clients of many users; 0: one client per user
    min_interactions: Annotated[int, Field(ge=0)] = 0
    select: str = "NDCG@10"  # validation metric that chooses the reported round
    metrics: tuple[str, ...] = ()  # to be shown; those outside tacit, `module:Class@10`, are computed as well
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    evaluate_users: Annotated[int, Field(ge=0)] | None = None  # in validation; 0: all, None: all of up to 50,000
    patience: Annotated[int, Field(ge=0)] = 0
    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    ldp: Ldp | None = None  # noise on every upload
    mapped: bool = False  # keep the clients' state in memory-mapped files
    secure: bool = False  # the server sees only sums of uploads
    dp: Dp | None = None  # noise on these sums
    bound: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # of a client's change, in usual ones; 0: none
    robust: Literal["", "median", "trimmed"] = ""  # in place of the mean of uploads
    tested: bool = True  # False: a trial of a search, which has no test items at all

    # where it runs; the outcome does not depend on these
    threads: Annotated[int, Field(ge=0)] = 0  # 0: one per core
    chunk: Annotated[int, Field(ge=1)] = 128


OUTSIDE = ("threads", "chunk", "mapped", "checkpoint_every", "metrics")  # options that the outcome does not depend on


def config(**values: Any) -> RunConfig:
    """A checked configuration; a wrong value raises a one-sentence error."""
    known = RunConfig.model_fields
    for key in values:
        if key not in known:
            raise unknown("option", key, known)
    if isinstance(values.get("ldp"), str):
        values["ldp"] = parse_pairs(values["ldp"].split(","), "--ldp kind=laplace,clip=0.5,scale=0.1")
    if isinstance(values.get("metrics"), str):
        values["metrics"] = metrics.names(values["metrics"])
    if isinstance(values.get("dp"), str):
        values["dp"] = parse_pairs(values["dp"].split(","), "--dp clip=1,noise=1")
    try:
        made = RunConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{name}={first['input']!r} is invalid: {reason(error)}") from None
    made = made.model_copy(update={"method": canonical(made.method)})
    select, beside = metrics.selecting(made.select), map(metrics.find, made.metrics)
    made = made.model_copy(update={"select": str(select), "metrics": tuple(map(str, beside))})
    if made.ldp is not None:
        made.ldp.check()
    if (made.bound or made.robust) and (made.secure or made.ldp is not None):
        raise UserError(
            "bound and robust need single uploads as they were trained: with --secure the server sees none, and "
            "--ldp clips them on the client; leave one or the other out"
        )
    if made.dp is not None:
        made.dp.check(made.secure, made.ldp is not None)
    return made


def canonical(method: str) -> str:
    """A method's name as it is written down: FedMF is fedmf, PLGC+FedMF is plgc+fedmf; a class keeps its letters."""
    return "+".join(part if ":" in part else part.lower() for part in method.split("+"))


def read(path: Path) -> dict[str, Any]:
    """The options of a run from a TOML file, or from the run.json of an earlier one."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    values = values.get("config", values) if isinstance(values, dict) else values
    if not isinstance(values, dict):
        raise UserError(f'{path} is not the configuration of a run; write lines such as method = "fedmf"')
    for key in values:
        if key not in RunConfig.model_fields:
            raise unknown(f"option in {path}", key, RunConfig.model_fields)
    if not isinstance(values.get("settings"), dict | None):
        raise UserError(f"'settings' in {path} is invalid: write a table, such as settings = {{ dim = 32 }}")
    return {key: value for key, value in values.items() if value is not None}


def build(cls: type[Method], settings: dict[str, Any]) -> Method:
    """A method with its settings, each checked against the field's type."""
    cls = refined(cls, settings)
    check_settings(cls)
    known = settings_of(cls)
    values = {}
    for key, value in settings.items():
        if key not in known:
            raise unknown(f"setting of {cls.name}", key, known)
        try:
            values[key] = known[key].parse(value)
        except ValueError as error:
            shown = value if isinstance(value, str) else json.dumps(value, default=str)
            raise UserError(f"{key}={shown} is invalid for {cls.name}: {error}") from None
    try:
        method = cls(**values)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{cls.name} cannot be made with these settings: {type(error).__name__}: {error}") from error
    check_method(method)
    return method


def rebuild(cls: type[Method], settings: dict[str, Any]) -> Method:
    """A method as an earlier run had it; settings that no longer exist had no effect."""
    fields = {f.name for f in dataclasses.fields(refined(cls, settings))}
    return build(cls, {key: value for key, value in settings.items() if key in fields})


def parse_pairs(pairs: list[str], example: str = "--set dim=32") -> dict[str, str]:
    """`key=value` words from the command line."""
    out = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise UserError(f"'{pair}' is not a setting; write key=value, as in {example}")
        out[key] = value
    return out
