"""Every option and function of torchdeq is known here: taken, or refused with what to use."""

import argparse
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.adapters import torchdeq as ours

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-torchdeq.md"

# torchdeq 0.1.0: the flags of add_deq_args with their defaults
FLAGS = {
    "f_solver": "fixed_point_iter",
    "b_solver": "fixed_point_iter",
    "f_max_iter": 40,
    "b_max_iter": 40,
    "f_tol": 1e-3,
    "b_tol": 1e-6,
    "f_stop_mode": "abs",
    "b_stop_mode": "abs",
    "eval_factor": 1.0,
    "eval_f_max_iter": 0,
    "norm_type": "weight_norm",
    "norm_no_scale": False,
    "norm_clip": False,
    "norm_clip_value": 1.0,
    "norm_target_norm": 1.0,
    "sn_n_power_iters": 1,
    "core": "sliced",
    "ift": False,
    "hook_ift": False,
    "n_states": 1,
    "indexing": [],
    "gamma": 0.8,
    "grad": [1],
    "tau": 1.0,
    "sup_gap": -1,
    "sup_loc": [],
    "jac_loss_weight": 0.0,
    "jac_loss_freq": 0.0,
    "jac_incremental": 0,
    "sradius_mode": False,
}
# the options in the signatures of its functions, without what they are applied to
OF_GET_DEQ = {
    *("f_solver", "b_solver", "no_stat", "f_max_iter", "b_max_iter", "f_tol", "b_tol"),
    *("f_stop_mode", "b_stop_mode", "eval_factor", "eval_f_max_iter", "ift", "hook_ift"),
    *("grad", "tau", "sup_gap", "sup_loc", "n_states", "indexing"),
}
OF_CALLS = {"solver_kwargs", "sradius_mode", "backward_writer"}
OF_SOLVERS = {"m", "lam", "tau", "LBFGS_thres", "ls", "return_final"}
OF_APPLY_NORM = {"norm_type", "prefix_filter_out", "filter_out"}
OF_NORMS = {
    *("names", "dims", "learn_scale", "target_norm", "clip", "clip_value"),
    *("n_power_iterations", "eps"),
}
OF_JAC_REG = {"vecs", "create_graph"}
OPTIONS = OF_GET_DEQ | OF_CALLS | OF_SOLVERS | OF_APPLY_NORM | OF_NORMS | OF_JAC_REG
TAKEN = {
    *("add_deq_args", "apply_norm", "get_deq", "jac_reg", "remove_norm", "reset_deq"),
    "reset_norm",
}
FUNCTIONS = {
    *TAKEN,
    *("fp_correction", "get_solver", "mem_gc", "mixed_init", "power_method"),
    *("register_deq", "register_norm", "register_norm_module", "register_solver"),
    *("register_weight_func", "reset_dropout", "solver_stat_from_final_step"),
}
PACKAGES = {"core", "dropout", "grad", "loss", "norm", "solver", "utils"}


@pytest.fixture
def theirs():
    return pytest.importorskip("torchdeq", reason="torchdeq is not installed")


def parser_of(module):
    parser = argparse.ArgumentParser()
    module.add_deq_args(parser)
    return parser


def kinds(parser):
    """What each flag takes: how many values, of which type."""
    return {action.dest: (type(action), action.nargs, action.type) for action in parser._actions}


def options_of(*functions, without=()):
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [p for f in functions for p in inspect.signature(f).parameters.values()]
    return {p.name for p in parameters if p.kind is named} - {"self", *without}


def table():
    """The words in code in the first column of the page's table."""
    rows = PAGE.read_text().partition("## Every option")[2].partition("\n## ")[0].splitlines()
    codes = [c for row in rows if row[:1] == "|" for c in re.findall("`(.+?)`", row.split("|")[1])]
    return {word for code in codes for word in re.findall(r"\w+", code)}


def test_every_flag_is_added_with_its_default():
    assert vars(parser_of(ours).parse_args([])) == FLAGS | {"no_stat": None, "on_failure": "warn"}


def test_flags_are_those_of_torchdeq(theirs):
    assert vars(parser_of(theirs).parse_args([])) == FLAGS
    found, expected = kinds(parser_of(ours)), kinds(parser_of(theirs))
    assert {name: found[name] for name in expected} == expected


def test_options_are_those_of_torchdeq(theirs):
    core, solver, norm = theirs.core, theirs.solver, theirs.norm.base_norm
    cores = (core.DEQBase, core.DEQSliced, core.DEQIndexing)
    assert options_of(*cores, without={"args"}) == OF_GET_DEQ
    calls = [each.forward for each in cores]
    assert options_of(*calls, without={"func", "z_init", "z_star"}) == OF_CALLS
    solvers = [solver.get_solver(name) for name in ("anderson", "broyden", "fixed_point_iter")]
    given = {"func", "x0", "max_iter", "tol", "stop_mode", "indexing"}  # by get_deq
    assert options_of(*solvers, without=given) == OF_SOLVERS
    assert options_of(theirs.apply_norm, without={"model", "args"}) == OF_APPLY_NORM
    norms = (norm.WeightNorm.apply, norm.SpectralNorm.apply)
    assert options_of(*norms, without={"module", "deq_args"}) == OF_NORMS
    assert options_of(theirs.jac_reg, without={"f0", "z0"}) == OF_JAC_REG
    public = {name for name, value in vars(theirs).items() if inspect.isfunction(value)}
    assert public == FUNCTIONS


def test_the_page_names_all_of_them():
    assert (set(FLAGS) | OPTIONS | FUNCTIONS) - table() == set()


def test_functions_are_there_or_refused():
    assert set(ours.__all__) >= TAKEN
    for name in (FUNCTIONS | PACKAGES) - TAKEN:
        with pytest.raises(ImportError, match=f"has no {name}; use "):
            getattr(ours, name)


def test_a_command_line_with_every_flag_runs():
    """Flags that are read by the program alone have any value; norms have their defaults."""
    line = "--f_tol 1e-4 --f_solver anderson --indexing 2 5 --grad 1 1 1 --gamma 0.9 --core sliced "
    line += "--jac_loss_weight 0.1 --jac_loss_freq 0.5 --jac_incremental 100 --sradius_mode "
    line += "--norm_clip_value 1 --norm_target_norm 1.0 --sn_n_power_iters 1"
    args = parser_of(ours).parse_args(line.split())
    cell, x = nn.Linear(3, 3), torch.ones(2, 3)
    ours.apply_norm(cell, args=args, learn_scale=True, clip=False, eps=1e-12)
    kwargs = {"lam": 1e-4, "return_final": False}
    states, _ = ours.get_deq(args)(lambda z: torch.tanh(cell(z) / 2 + x), x, kwargs)
    assert len(states) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--norm_no_scale", "norm_no_scale must be False, got True; use .*original0"),
        ("--norm_target_norm 2", r"norm_target_norm must be 1\.0, got 2\.0; use .*original0"),
        ("--norm_clip", "norm_clip must be False, got True; use shoal.GainConstraint"),
        ("--norm_clip_value 2", r"norm_clip_value must be 1\.0, got 2\.0; use shoal.Gain"),
        ("--sn_n_power_iters 5", "sn_n_power_iters must be 1, got 5; use .*spectral_norm"),
        ("--norm_type spectral_norm", "norm_type must be .* got 'spectral_norm'; use .*Gain"),
    ],
)
def test_flags_of_norms_are_refused_where_they_are_used(flags, message):
    args = parser_of(ours).parse_args(flags.split())
    with pytest.raises(ValueError, match=message):
        ours.apply_norm(nn.Linear(2, 2), args=args)
    ours.get_deq(args)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learn_scale": False}, ValueError, "learn_scale must be True, got False; use apply_norm"),
        ({"clip": True}, ValueError, "clip must be False, got True; use shoal.GainConstraint"),
        ({"n_power_iterations": 3}, ValueError, "n_power_iterations must be 1, got 3; use torch"),
        ({"names": "bias"}, ValueError, "names must be None, got 'bias'; use torch.*weight_norm"),
        ({"scale": 2}, TypeError, "apply_norm has no option 'scale'; it has learn_scale"),
    ],
)
def test_options_of_norms_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ours.apply_norm(nn.Linear(2, 2), **options)


def test_options_of_the_program_are_its_own():
    """A program's clip and eps, of its gradients and its optimizer, are not those of norms."""
    ours.apply_norm(nn.Linear(2, 2), args={"clip": 0.25, "eps": 1e-8, "names": ["a"]})


def test_a_line_search_is_refused():
    with pytest.raises(ValueError, match="got ls=True; give one of shoal's solvers as f_solver"):
        ours.get_deq(f_solver="broyden")(torch.cos, torch.ones(2, 1), {"ls": True})


def test_the_remedy_for_scales_that_are_not_learned(theirs):
    """What the message says to use gives torchdeq's weights."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    other = nn.Linear(4, 3)
    other.load_state_dict(layer.state_dict())
    theirs.apply_norm(other, args={"norm_no_scale": True, "norm_target_norm": 0.5})
    ours.apply_norm(layer)
    scale = layer.parametrizations.weight.original0.requires_grad_(False)
    scale.fill_(0.5)
    torch.testing.assert_close(layer.weight, other.weight)
