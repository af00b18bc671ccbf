"""The swap: one activation, mostly ReLU, in place of every other, wherever and however a network
computes it.

Beside it the proof that a network executes each activation that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from lambda_gelu.activations import RELU, census
from lambda_gelu.activations.census import (
    duplicate,
    identify,
    made_like,
    settle_transformers,
    staying,
    stays,
    substitute,
)
from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.activations.recognition import Recognised, known
from lambda_gelu.activations.runs import Use, as_call, census_of_operators, census_of_run
from lambda_gelu.activations.traits import Activation
from lambda_gelu.functional import adopt_functions, redirect_calls
from lambda_gelu.plugins import did_you_mean
from lambda_gelu.rewrite import modes_in, rewrite_formulas

# Like ReLU for large |x|, and in no row: left in a network they make it no ReLU network.
_RESEMBLING = (nn.Softplus, nn.CELU, nn.SELU)
_UNSWAPPABLE = (*_RESEMBLING, nn.Tanh, nn.Sigmoid, nn.GLU, nn.LogSigmoid, nn.Tanhshrink)


def expose(module: nn.Module, example: Any = None) -> nn.Module:
    """A copy of `module` that computes the same, in which every activation is a module that
    `census` and `harden` find.

    1. A third party's module that computes a row at a fixed hardness, as x sigmoid(1.702 x),
       becomes Swish or LambdaGELU at that hardness, not learnt; a function that is an attribute, as
       nn.TransformerEncoderLayer's, becomes a module.
    2. With an example: functional calls in a module's forward go to its new child modules
       `activation_0`, ... (`redirect_calls`); the module's class is then a subclass of its class.
    3. With an example, and only if the run shows activations written by hand: the network becomes
       the fx.GraphModule of torch.export in which they are modules `formula_0`, ...
       (`rewrite_formulas`): dropout and batch normalisation stay in the mode that `module` is in
       now.

    Args:
        module: any network.
        example: inputs: a tensor, a tuple of arguments or a mapping of named ones. None: only
            modules are looked at.

    Raises:
        ValueError: see `redirect_calls` and `rewrite_formulas`.
    """
    # 1. Put modules in place of third parties' modules at a fixed hardness and of functions that
    # are attributes: both can be found without a run.
    exposed = duplicate(module)
    fixed = {
        id(layer): made_like(exposed, _make(traits))
        for layer in exposed.modules()
        if not stays(layer) and (traits := identify(layer)) is not None and traits.hardness != 1
    }
    exposed = substitute(exposed, fixed)
    adopt(exposed)
    settle_transformers(exposed)
    if example is None:
        return exposed
    # 2. Send functional calls to child modules. A run is needed, since only it shows which
    # module's forward calls which function.
    args, kwargs = as_call(example)
    redirect_calls(
        exposed,
        lambda call: made_like(module, _make(call.recognised)) if call.recognised else None,
        args,
        kwargs,
    )
    # 3. What the run still executes as bare operators is written by hand; only a rewritten graph
    # can hold a module in its place.
    uses = census_of_run(exposed, *args, **kwargs)
    if any(use.kind in ("formula", "operator") and use.traits is not None for use in uses):
        return rewrite_formulas(exposed, _make, args, kwargs)
    return exposed


def adopt(network: nn.Module) -> None:
    """Make modules, in place, of the activations that are functions and attributes of a module
    of `network`.
    """
    adopt_functions(network, lambda activation: made_like(network, _make(activation)))


def swap_to_relu(module: nn.Module, example: Any = None, keep: Collection[str] = ()) -> nn.Module:
    """A copy of `module`, in evaluation mode, with ReLU in place of each known activation: see
    `swap`.
    """
    return swap(module, RELU, example, keep)


def swap(
    module: nn.Module,
    to: Activation,
    example: Any = None,
    keep: Collection[str] = (),
    *,
    rows: Collection[str] | None = None,
) -> nn.Module:
    """A copy of `module`, in evaluation mode, with the activation `to` in place of each known one.

    Without an example only modules are swapped. With one, activations that are called as functions
    or written by hand are swapped too (see `expose`: the latter makes the result an
    fx.GraphModule), and the result is run once: if any activation other than `to` is still
    executed, that is an error. A tanh, sigmoid or erf that is not part of x g(x) (a gate, a pooler,
    a probability) is no GELU-like activation, and stays; so does what is bounded above on purpose
    and piecewise linear already, as ReLU6 (`Activation.swaps`), unless `rows` names it, and what
    `let_stay` marks.

    Args:
        module: any network.
        to: the row of traits of what is put in; a parameter of its own has its initial value.
        example: inputs: a tensor, a tuple of arguments or a mapping of named ones.
        keep: dotted paths of modules whose activations, and those of modules inside, may stay.
        rows: the names of the activations that are replaced; None: all that are like ReLU for large
            |x|.

    Raises:
        ValueError: there is no known activation, or one that cannot be swapped (Softplus, CELU,
            SELU); `keep` names no module; the module is a graph that was exported while it trained;
            see also `expose`.
    """
    # 1. Make every activation a module of a copy, because only modules can be replaced.
    exposed = expose(duplicate(module).eval(), example)
    paths = {path for network in (module, exposed) for path, _ in network.named_modules()}
    if unknown := [path for path in keep if path not in paths]:
        near = did_you_mean(unknown[0], sorted(paths))
        raise ValueError(
            f"keep names {unknown[0]!r}, which is no module of {type(module).__name__}{near}"
        )
    # A graph exported in training mode keeps its dropout whatever eval() says, so that no run of
    # it would show what is deployed.
    if training := [name for name, trains in modes_in(exposed).items() if trains]:
        raise ValueError(
            f"{type(module).__name__}: {', '.join(training)} was exported in training mode, which"
            " eval() cannot change; call eval() on the network before expose() or harden()"
            " rewrites its formulas"
        )
    # 2. Choose what is replaced. Gates are counted only where rows are named, since a sigmoid or
    # tanh outside of x g(x) is mostly no activation.
    every = [use for use in census(exposed, gates=rows is not None) if not stays(use.module)]
    if rows is None:
        chosen = [
            activation
            for activation in every
            if activation.traits.swaps and not activation.traits.gate
        ]
    else:
        chosen = [activation for activation in every if activation.traits.name in rows]
    if not chosen:
        raise ValueError(_nothing_found(module, example))
    # 3. Replace it, but for what the caller keeps.
    put = {
        id(activation.module): made_like(exposed, _put(to, activation.module))
        for activation in chosen
        if not is_in(activation.path, keep)
    }
    swapped = substitute(exposed, put).eval()
    # 4. Show that nothing is left: by the operators of a run where there is an example, and else by
    # the classes that resemble GELU and cannot be swapped.
    if example is not None:
        check_swapped(swapped, example, keep, to=to)
    elif cannot := _of_type(
        swapped, _RESEMBLING, {*keep, *staying(swapped), *_matching(swapped, to)}
    ):
        raise ValueError(
            f"{type(module).__name__}: cannot be swapped: {', '.join(cannot)}; keep= leaves them in"
            " place"
        )
    return swapped


def check_swapped(
    module: nn.Module, example: Any, keep: Collection[str] = (), *, to: Activation = RELU
) -> None:
    """Run `module` and raise ValueError if it executes an activation other than `to`: operator by
    operator.

    Args:
        module: a network after the swap.
        to, example, keep: see `swap`.
    """
    uses = _executed(module, *as_call(example))
    stay = {*keep, *staying(module), *_matching(module, to)}
    left = sorted(
        {_where(use) for use in uses if _is_left(use, to.name) and not is_in(use.path, stay)}
    )
    if left:
        raise ValueError(
            f"{type(module).__name__}: still executed after the swap: {'; '.join(left)}. Write them"
            " as known activations, or name the modules in keep= to leave them as they are"
        )


def check_executes(module: nn.Module, activation: str, example: Any) -> None:
    """Prove by the census and by a run that `module` executes the activation of that name, and none
    like it.

    Args:
        module: a network as a workload builds it, or as a variant leaves it.
        activation: a registered name.
        example: see `swap`.

    Raises:
        ValueError: it does not; the text says what is executed, where, and the cure.
    """
    places_of(module, activation, example)


def places_of(module: nn.Module, activation: str, example: Any) -> set[str]:
    """The paths of the modules that execute that activation in a run. Raises as
    `check_executes`.
    """
    # 1. Observe a run twice: by functions and operators, which tell the activations, and by
    # hooks, which tell the modules whose forward is called. A module that is never called proves
    # nothing.
    args, kwargs = as_call(example)
    paths = {each.path for each in census(module, gates=True) if each.traits.name == activation}
    executed = _executed(module, args, kwargs)
    reached, watched = set[str](), duplicate(module).eval()
    for path, layer in watched.named_modules():
        layer.register_forward_pre_hook(lambda *_, path=path: reached.add(path))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        watched(*args, **kwargs)
    # 2. What is executed elsewhere than in these modules, and is another activation.
    others = [
        use
        for use in executed
        if _is_left(use, activation) and not is_in(use.path, {*paths, *staying(module)})
    ]
    # 3. Where the activation is executed: as a function, as operators, or as a module.
    places = {
        use.path for use in executed if use.function == activation or _computes(use, activation)
    }
    places |= paths & reached
    if others or not places:
        said = "; ".join(sorted({_where(use) for use in others})) or "no activation like it"
        raise ValueError(
            f"the network is to execute {activation!r}, but a run of it executes {said}: let the"
            " workload's build() make every activation by the function that it is given, and write"
            " none itself"
        )
    return places


def _executed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Use]:
    return [*census_of_run(module, *args, **kwargs), *census_of_operators(module, *args, **kwargs)]


def _matching(module: nn.Module, target: Activation) -> list[str]:
    """Where `target` is: what a module of a third party computes it by is inside, and no activation
    that was left.
    """
    return [path for path, layer in module.named_modules() if target.matches(layer)]


def _computes(use: Use, name: str) -> bool:
    return use.traits is not None and use.traits.name == name and use.hardness == 1


def _is_left(use: Use, name: str) -> bool:
    settled = use.traits is not None and (_computes(use, name) or not use.traits.swaps)
    return use.kind != "kept" and use.function != name and not settled


def _where(use: Use) -> str:
    return f"{use.function} at {use.path or '(the network itself)'} ({use.kind})"


def is_in(path: str, places: Collection[str]) -> bool:
    """Whether the path is one of these places or inside one."""
    return any(path == place or path.startswith(f"{place}.") for place in places)


def _put(target: Activation, activation: nn.Module) -> nn.Module:
    """In place where the activation is: a forward may rely on that, and drop what is returned."""
    replacement = target.make(1)
    if getattr(activation, "inplace", False):
        if not hasattr(replacement, "inplace"):
            raise ValueError(
                f"{type(activation).__name__} works in place, which {target.name} cannot; set"
                " inplace=False"
            )
        vars(replacement)["inplace"] = True
    return replacement


def _of_type(
    network: nn.Module, types: tuple[type[nn.Module], ...], keep: Collection[str]
) -> list[str]:
    return [
        f"{type(layer).__name__} at {path or '(the network itself)'}"
        for path, layer in network.named_modules()
        if isinstance(layer, types) and not is_in(path, keep)
    ]


def _make(recognised: Recognised) -> nn.Module:
    """A module that computes what was recognised; a hardness other than 1 is set and not learnt."""
    traits = recognised.traits
    if recognised.hardness == 1:
        return traits.make(1)
    for row in known():
        module = row.make(1) if row.value is traits.value and row.parameters == ("s",) else None
        if isinstance(module, Hardenable):
            module.set_hardness(recognised.hardness)
            return module.requires_grad_(False)
    raise ValueError(
        f"no module computes {traits.name} at the fixed hardness {recognised.hardness:.6g}"
    )


def _nothing_found(module: nn.Module, example: Any) -> str:
    others = _of_type(module, _UNSWAPPABLE, ())
    looked = "looked at modules" + (
        ", functional calls and formulas" if example is not None else ""
    )
    more = (
        ""
        if example is not None
        else "; pass example= to look at functional calls and formulas too"
    )
    cannot = f"; cannot be swapped: {', '.join(others)}" if others else ""
    return f"no GELU-like activation found in {type(module).__name__}: {looked}{more}{cannot}"


Make = Callable[[int], nn.Module]
_MARK = "_given_to_build"


def build_executing(
    build: Callable[[Make], nn.Module], make: Make, activation: str, example: Any
) -> nn.Module:
    """The network that `build` makes, after a run has shown that it executes each `activation` that
    it was given.

    Args:
        build: a workload's.
        make: makes each activation, given the number of channels.
        activation: the registered name of what `make` makes.
        example: see `swap`.

    Raises:
        ValueError: it has none of what `make` makes, or leaves one uncalled, or executes another
            (`check_executes`).
    """
    modules: list[nn.Module] = []

    def noted(channels: int) -> nn.Module:
        modules.append(make(channels))
        # A mark, since a copy of the module counts too: nn.TransformerEncoder copies its layer.
        vars(modules[-1])[_MARK] = True
        return modules[-1]

    # 1. Build, and find where in the network the modules lie that `make` gave. A module that was
    # dropped, or never became a child, has no path.
    network = build(noted)
    settle_transformers(network)
    marked = [path for path, layer in network.named_modules() if _MARK in vars(layer)]
    for each in [*modules, *network.modules()]:
        vars(each).pop(_MARK, None)
    # 2. Run it: an activation that is a child and is never called would be measured as if it were
    # used.
    executing = places_of(network, activation, example)
    idle = [path for path in marked if not any(is_in(place, [path]) for place in executing)]
    if idle or not marked:
        said = (
            f"never calls the one at {', '.join(idle)}"
            if idle
            else "contains none that this function made"
        )
        raise ValueError(
            f"build() is to make {activation!r} by the function that it is given, but the network"
            f" {said}: call that function for each activation, keep what it returns as a module,"
            " and let forward() call that"
        )
    return network
