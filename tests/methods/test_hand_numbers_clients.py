"""Numbers computed by hand for what happens on the clients.

The model is y = w1 x1 + w2 x2 with squared error, started at w = (1, 2). Client A has one sample, x = (1, 0), y = 3;
client B has three equal ones, x = (1, 0), y = -1. With batches of 1 and lr = 1/4 a plain step is

    w1 <- w1 - 1/4 * 2 (w1 - y) = (w1 + y) / 2

so that A makes the one step 1 -> 2 and B the three steps 1 -> 0 -> -1/2 -> -3/4, and w2 never moves. p = (1/4, 3/4).
All these are binary fractions: where no other tolerance is written the comparison is exact.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, plane

from unalike import Method, UnalikeError, Work
from unalike.core.types import Batch, Output
from unalike.methods.parts.objectives import ModelContrast, NotTrueDistillation


def two():
    return Clients.of(([[1.0, 0.0]], [3.0]), ([[1.0, 0.0]] * 3, [-1.0] * 3))


def simulate(method, clients=None, **work):
    work = {"batch_size": 1, "lr": 0.25} | work
    return Simulation(method, plane(1, 2), clients or two(), task="regression", **work)


def w1(sim):
    """The first parameter; the second has to stay where it was."""
    assert sim.params["head.weight"][0, 1] == 2
    return float(sim.params["head.weight"][0, 0])


def after(method, rounds=1, **work):
    sim = simulate(method, **work)
    for _ in range(rounds):
        sim.round()
    return w1(sim)


def drawer(sim, client, part, name="head.weight"):
    return sim.memory(client)[part][name].flatten().tolist()


def test_fedavg_two_rounds_equal_hand_numbers():
    """1/4 * 2 + 3/4 * (-3/4) = -1/16; second round: A (-1/16 + 3)/2 = 47/32, B -1/16 -> -17/32 -> -49/64 ->
    -113/128."""
    assert after("fedavg") == -1 / 16
    assert after("fedavg", rounds=2) == 47 / 128 - 339 / 512


def test_client_update_counts_and_loss_equal_hand_numbers():
    cohort = simulate("fedavg").run()
    assert cohort.update["head.weight"].tolist() == [[[1, 0]], [[-1.75, 0]]]
    assert (
        cohort.sizes.tolist() == [1, 3]
        and cohort.steps.tolist() == [1, 3]
        and cohort.solver_weights.tolist() == [1, 3]
    )
    assert cohort.stacked.loss.tolist() == [
        4,
        pytest.approx((4 + 1 + 0.25) / 3),
    ]  # squared error before each step


def test_uniform_one_round_equals_hand_numbers():
    """(2 - 3/4) / 2 = 5/8."""
    assert after("uniform") == 5 / 8


def test_fedsgd_any_work_equals_one_full_batch_step():
    """One full-batch step each, whatever was asked for: A 2, B 0: 1/4 * 2 = 1/2."""
    assert after("fedsgd", epochs=7, momentum=0.9) == 1 / 2
    assert after("fedsgd", steps=3, batch_size=2) == 1 / 2


def test_work_epochs_and_steps_equal_hand_numbers():
    """Two epochs: A 1 -> 2 -> 5/2, B six steps to -1 + 2/64; `steps=2`: A 5/2, B -1/2."""
    assert after("fedavg", epochs=2) == 0.25 * 2.5 + 0.75 * (-1 + 2 / 64)
    assert after("fedavg", steps=2) == 0.25 * 2.5 - 0.75 * 0.5


def test_work_schedule_lowers_lr_in_second_round():
    """schedule = 1/2: round 0 with lr 1/4 gives -1/16; round 1 with 1/8, w1 <- w1 - (w1 - y)/4."""
    a, b = -1 / 16, -1 / 16
    a -= (a - 3) / 4
    for _ in range(3):
        b -= (b + 1) / 4
    assert after("fedavg", rounds=2, schedule=0.5) == pytest.approx(
        0.25 * a + 0.75 * b, rel=1e-6
    )  # float32


def test_work_gradient_clip_limits_every_step():
    """clip = 1: every gradient here has norm >= 1 (A 4; B 4, 3.5, 3), so each step has length 1/4."""
    assert after("fedavg", clip=1.0) == 0.25 * 1.25 + 0.75 * 0.25


def test_fedavgm_two_rounds_equal_hand_numbers():
    """v1 = -17/16; round 2: d = -1/16 -> 47/128 - 339/512, v2 = v1/2 + d, w = w + v2."""
    first, second = -1 / 16, 47 / 128 - 339 / 512
    v1, d2 = first - 1, second - first
    assert after("fedavgm(momentum=0.5)", rounds=2) == first + (v1 / 2 + d2)
    # dampening leaves the first round alone
    assert after("fedavgm(momentum=0.5, dampening=0.5)", rounds=2) == first + (v1 / 2 + d2 / 2)
    # nesterov moves by d + m v; in round 1 that is 3/2 d
    assert after("fedavgm(momentum=0.5, nesterov=True)") == 1 + 1.5 * v1
    assert after("fedavgm(momentum=0.5, lr=0.5)") == 1 + v1 / 2


def test_fedprox_mu_one_equals_hand_numbers():
    """mu = 1: w1 <- w1 - 1/4 (2 (w1 - y) + (w1 - 1)). A 2; B 1 -> 0 -> -1/4 -> -5/16."""
    assert after("fedprox(mu=1)") == 0.25 * 2 - 0.75 * 5 / 16


def test_fedprox_with_client_momentum_equals_hand_numbers():
    """mu = 1, momentum 1/2, B: g 4, m 4, w 0; g 2-1=1, m 3, w -3/4; g 1/2-7/4=-5/4, m 1/4, w -13/16. A 2."""
    assert after("fedprox(mu=1)", momentum=0.5) == 0.25 * 2 - 0.75 * 13 / 16


def test_adabest_estimate_halves_in_a_round_without_its_client():
    """mu = 1: A 1 -> 2, h_A = -1; B 2 -> 1/2 -> -1/4 -> -5/8; A steps by 2 (w1 - 3) + 1 to 15/16, h_A = -1/2 - 25/16."""
    sim = simulate("adabest(mu=1, beta=0)")
    for client in (0, 1, 0):
        sim.round([client])
    assert w1(sim) == 15 / 16
    assert drawer(sim, 0, "adaptive_bias", "h/head.weight") == [-33 / 16, 0]


def test_fednova_unequal_steps_equal_hand_numbers():
    """tau = (1, 3), tau_eff = 1/4 + 9/4 = 5/2: 1 + 5/2 (1/4 * 1 + 3/4 * (-7/4)/3) = 17/32."""
    assert after("fednova") == 17 / 32


def test_fednova_with_client_momentum_equals_hand_numbers():
    """rho = 1/2, B: g 4, m 4, w 0; g 2, m 4, w -1; g 0, m 2, w -3/2. ||a|| = (1, 1 + 3/2 + 7/4 = 17/4)."""
    tau_eff = 0.25 * 1 + 0.75 * 4.25
    expected = 1 + tau_eff * (0.25 * 1 / 1 + 0.75 * -2.5 / 4.25)
    assert after("fednova", momentum=0.5) == pytest.approx(expected, rel=1e-6)  # float32


def test_fednova_with_nesterov_momentum_equals_hand_numbers():
    """rho = 1/2: A steps 6/4: 5/2. B: g 4, m 4, step 6: -1/2; g 1, m 3, 5/2: -9/8; g -1/4, m 5/4, 3/8: -39/32.
    Unit gradients: m = 1, 3/2, 7/4, steps 3/2, 7/4, 15/8: ||a|| = (3/2, 41/8)."""
    tau_eff = 0.25 * 1.5 + 0.75 * 41 / 8
    expected = 1 + tau_eff * (0.25 * 1.5 / 1.5 + 0.75 * (-39 / 32 - 1) / (41 / 8))
    assert after("fednova", momentum=0.5, nesterov=True) == pytest.approx(
        expected, rel=1e-6
    )  # float32


def test_fednova_prox_aware_equals_hand_numbers():
    """mu = 1, alpha = 1/4: ||a|| = (1 - (3/4)^tau)/(1/4) = (1, 37/16), tau_eff = 5/2; B moves by -21/16."""
    expected = 1 + 2.5 * (0.25 * 1 + 0.75 * (-21 / 16) / (37 / 16))
    assert after("fedprox(mu=1) + fednova(prox_aware=True)") == pytest.approx(
        expected, rel=1e-6
    )  # float32
    assert after("fednova(prox_aware=True)") == 17 / 32  # without a proximal term: the steps


def test_fedmix_mu_one_equals_hand_numbers():
    """FedProx's clients, FedNova's server with tau = (1, 3): 1 + 5/2 (1/4 - 3/4 * 21/48) = 103/128."""
    assert after("fedmix(mu=1)") == 103 / 128


def test_scaffold_option_2_two_rounds_equal_hand_numbers():
    """Round 1: (2 - 3/4)/2 = 5/8; c_A = (1 - 2)/(1/4) = -4, c_B = (7/4)/(3/4) = 7/3, c = -5/6.
    Round 2: g - c_i + c; A: -19/4 + 4 - 5/6; B three steps of 2 (w1 + 1) - 7/3 - 5/6."""
    sim = simulate("scaffold")
    sim.round()
    assert w1(sim) == 5 / 8
    assert drawer(sim, 0, "control_variates") == [-4, 0]
    assert drawer(sim, 1, "control_variates") == pytest.approx([7 / 3, 0])
    assert sim.state.part_states["control_variates"][
        "head.weight"
    ].flatten().tolist() == pytest.approx([-5 / 6, 0])
    a = 5 / 8 - (2 * (5 / 8 - 3) + 4 - 5 / 6) / 4
    b = 5 / 8
    for _ in range(3):
        b -= (2 * (b + 1) - 7 / 3 - 5 / 6) / 4
    sim.round()
    assert w1(sim) == pytest.approx((a + b) / 2, rel=1e-6)  # float32
    c_a, c_b = -4 + 5 / 6 + (5 / 8 - a) * 4, 7 / 3 + 5 / 6 + (5 / 8 - b) * 4 / 3
    assert drawer(sim, 0, "control_variates")[0] == pytest.approx(c_a, rel=1e-5)
    assert drawer(sim, 1, "control_variates")[0] == pytest.approx(c_b, rel=1e-5)


def test_scaffold_option_1_two_rounds_equal_hand_numbers():
    """c_i = the gradients at the received w: -4 and 4, c = 0. Round 2 from 5/8: A -19/4 + 4 = -3/4: 13/16;
    B 2 (w1 + 1) - 4: 5/8 -> 13/16 -> 29/32 -> 61/64. Mean 113/128."""
    sim = simulate("scaffold(option=1)")
    sim.round()
    assert drawer(sim, 0, "control_variates") == [-4, 0] and drawer(sim, 1, "control_variates") == [
        4,
        0,
    ]
    assert sim.state.part_states["control_variates"]["head.weight"].tolist() == [[0, 0]]
    sim.round()
    assert w1(sim) == 113 / 128


def test_scaffold_after_momentum_refuses_other_steps_than_those_of_sgd():
    for work in (
        {"optimizer": "adam"},
        {"momentum": 0.9, "nesterov": True},
        {"keep_optimizer_state": True},
    ):
        with pytest.raises(UnalikeError, match="expects SGD"):
            Method.parse("scaffold(after_momentum=True)").check(Work(**work))


def test_scaffold_server_lr_and_weighted_equal_hand_numbers():
    assert after("scaffold(server_lr=0.5)") == 1 - 3 / 16  # half of 5/8 - 1
    assert after("scaffold(weighted=True)") == -1 / 16  # FedAvg's weights
    sim = simulate("scaffold(weighted=True)")
    sim.round()  # c_A = -4 and c_B = 7/3 as above; 1/4 and 3/4 of the samples
    assert sim.state.part_states["control_variates"]["head.weight"][0, 0].item() == pytest.approx(
        -1 + 7 / 4
    )


def test_scaffold_partial_participation_scales_server_variate():
    """Only A: c = 1/N * c_A = -4/2."""
    sim = simulate("scaffold")
    sim.round([0])
    assert w1(sim) == 2 and sim.state.part_states["control_variates"]["head.weight"][0, 0] == -2


def test_feddyn_two_rounds_equal_hand_numbers():
    """alpha = 1, round 1 as FedProx(1): v = (2, -5/16); h_k = -(v - 1) = (-1, 21/16); h = -1/2 (1 - 21/16) = 5/32;
    w = 27/32 - 5/32 = 11/16. Round 2, A: g = 2 (w1 - 3) + 1 + (w1 - 11/16): 11/16 -> 51/32."""
    sim = simulate("feddyn(alpha=1)")
    sim.round()
    assert w1(sim) == 11 / 16
    assert drawer(sim, 0, "dynamic_regularizer") == [-1, 0] and drawer(
        sim, 1, "dynamic_regularizer"
    ) == [21 / 16, 0]
    assert sim.state.part_states["dynamic_regularizer"]["head.weight"].tolist() == [[5 / 32, 0]]
    a, b = 11 / 16 - (2 * (11 / 16 - 3) + 1) / 4, 11 / 16
    assert a == 51 / 32
    for _ in range(3):
        b -= (2 * (b + 1) - 21 / 16 + b - 11 / 16) / 4
    h = 5 / 32 - (a + b - 2 * 11 / 16) / 2
    sim.round()
    assert w1(sim) == pytest.approx((a + b) / 2 - h, rel=1e-6)  # float32


def test_feddyn_partial_participation_and_weighted_equal_hand_numbers():
    """Only A: h = -1/N * 1 = -1/2, w = 2 + 1/2. Weighted, 1/4 and 3/4: models 1/4 * 2 - 3/4 * 5/16,
    h = -(1/4 * 1 - 3/4 * 21/16) = 47/64."""
    sim = simulate("feddyn(alpha=1)")
    sim.round([0])
    assert w1(sim) == 5 / 2
    assert after("feddyn(alpha=1, weighted=True)") == 1 / 2 - 15 / 64 - 47 / 64


def test_ditto_two_rounds_equal_hand_numbers():
    """lam = 1. w as FedAvg: -1/16. v_A: 1 -> 2, then g = 2 (2 - 3) + (2 + 1/16) = 1/16: 127/64. v_B: -5/16 as in
    FedProx(1)."""
    sim = simulate("ditto(lam=1)")
    sim.round()
    assert w1(sim) == -1 / 16
    assert drawer(sim, 0, "proximal_model") == [2, 2] and drawer(sim, 1, "proximal_model") == [
        -5 / 16,
        2,
    ]
    sim.round()
    assert w1(sim) == after("fedavg", rounds=2)
    assert drawer(sim, 0, "proximal_model")[0] == 127 / 64


@pytest.mark.parametrize(
    "mixing, part", [("parameters", "parameter_mixture"), ("output", "output_mixture")]
)
def test_apfl_adaptive_two_rounds_equal_hand_numbers(mixing, part):
    """The model is linear, so both mixings agree. a = 1/2, v = w = 1.
    A: v_bar 1, grad -4, v <- 1 + 1/4 * 1/2 * 4 = 3/2, a <- 1/2 - 1/4 * 0. B, a stays 1/2 in round 1: w 1, 0, -1/2; v 1
    -> 1/2; v_bar 1/4, grad 5/2, v 3/16; v_bar -5/32, grad 27/16, v -3/128."""
    sim = simulate(f"apfl(alpha=0.5, mixing={mixing!r})")
    sim.round()
    assert w1(sim) == -1 / 16
    assert drawer(sim, 0, part) == [3 / 2, 2] and drawer(sim, 0, part, "mixture.alpha") == [1 / 2]
    assert drawer(sim, 1, part) == [-3 / 128, 2] and drawer(sim, 1, part, "mixture.alpha") == [
        1 / 2
    ]

    # Round 2, w = -1/16: the first step moves a by the old v and w, the second step uses the new a.
    w, v, a = -1 / 16, -3 / 128, 1 / 2
    for step in range(3):
        grad = 2 * (a * v + (1 - a) * w + 1)
        new = np.clip(a - (v - w) * grad / 4, 0, 1) if step == 0 else a
        v, w, a = v - a * grad / 4, (w - 1) / 2, new
    sim.round()
    assert drawer(sim, 1, part)[0] == pytest.approx(v, rel=1e-5) and drawer(
        sim, 1, part, "mixture.alpha"
    )[0] == pytest.approx(a, rel=1e-6)
    # A: a - 1/4 (3/2 + 1/16) * 2 (23/32 - 3) = 1/2 + 1.78, clipped to 1
    assert drawer(sim, 0, part, "mixture.alpha") == [1] and drawer(sim, 0, part)[
        0
    ] == 1.5 + 0.125 * 2 * (3 - 23 / 32)


def test_apfl_not_adaptive_keeps_alpha():
    sim = simulate("apfl(alpha=0.25, adaptive=False)")
    sim.round()
    sim.round()
    assert drawer(sim, 0, "parameter_mixture", "mixture.alpha") == [0.25]
    # v <- v - lr a grad f(v_bar): round 1: 1 + 1/4 * 1/4 * 4 = 5/4; round 2: v_bar = 5/16 - 3/64 = 17/64
    assert drawer(sim, 0, "parameter_mixture")[0] == 1.25 + 2 * (3 - 17 / 64) / 16


def test_local_only_two_rounds_send_nothing_and_keep_shared_model():
    """Nothing is sent; A halves its distance to 3 every round, the global model stays."""
    sim = simulate("local_only")
    cohorts = [sim.round(), sim.round()]
    assert all(not c.update and not c.stacked.messages for c in cohorts) and w1(sim) == 1
    assert drawer(sim, 0, "private") == [2.5, 2] and drawer(sim, 1, "private") == [-1 + 2 / 64, 2]


def test_private_head_two_rounds_keep_head_on_client():
    """y = a b x with the body a shared and the head b private, lr 1/4, x = 1, y = 3 (A), a = 1, b = 2:
    grad a = 2 (ab - y) b = -4, grad b = 2 (ab - y) a = -2: a 2, b 5/2. The second client, y = 1: grads 4 and 2: a 0, b
    3/2."""
    from collections import OrderedDict

    from torch import nn

    module = nn.Sequential(
        OrderedDict(body=nn.Linear(1, 1, bias=False), head=nn.Linear(1, 1, bias=False))
    )
    with torch.no_grad():
        module.body.weight.fill_(1)
        module.head.weight.fill_(2)
    clients = Clients.of(([[1.0]], [3.0]), ([[1.0]], [1.0]))
    sim = Simulation(
        "private(select='head')", module, clients, task="regression", batch_size=1, lr=0.25
    )
    cohort = sim.round()
    assert list(cohort.update) == ["body.weight"] and cohort.update[
        "body.weight"
    ].flatten().tolist() == [1, -1]
    assert sim.params["head.weight"].item() == 2 and sim.params["body.weight"].item() == 1
    assert [sim.memory(k)["private"]["head.weight"].item() for k in (0, 1)] == [2.5, 1.5]
    sim.round()  # starts at the shared body 1 and the own head 5/2: ab - y = -1/2
    assert sim.memory(0)["private"]["head.weight"].item() == 2.75


def test_clip_large_updates_are_scaled_to_norm():
    """norm = 1/2: A's update 1 becomes 1/2, B's -7/4 becomes -1/2: 1 + 1/8 - 3/8. norm = 1: A keeps its own."""
    assert after("clip(norm=0.5)") == 3 / 4
    assert after("clip(norm=1)") == 1 + 1 / 4 - 3 / 4


def looking(**fields):
    """What the objectives below read of a `Local`."""
    own = {
        name: (lambda value: lambda *_: value)(fields[name])
        for name in ("out", "teacher", "own_output")
        if name in fields
    }
    return SimpleNamespace(**own, state=fields.get("state", {}))


def test_moon_loss_with_previous_model_equals_formula():
    """z = (3, 4), z_g = (4, 3), z_p = (-4, 3): cosines 24/25 and 0; tau 1/2: log(1 + e^(-48/25)). Second row: z = z_g,
    z_p = -z."""
    z, z_g, z_p = [[3.0, 4], [1, 0]], [[4.0, 3], [2, 0]], [[-4.0, 3], [-3, 0]]
    out, teacher, own_output = (
        Output(torch.zeros(2, 1), torch.tensor(f, dtype=torch.float64)) for f in (z, z_g, z_p)
    )
    expected = 3 * np.mean([np.log1p(np.exp(-(0.96 - 0) / 0.5)), np.log1p(np.exp(-(1 + 1) / 0.5))])
    part, batch = ModelContrast(mu=3, tau=0.5), Batch(None, torch.zeros(2))
    for seen in (0.0, 1.0):  # no term at the first participation
        local = looking(
            out=out, teacher=teacher, own_output=own_output, state={part.SEEN: torch.tensor(seen)}
        )
        assert part.loss(local, batch).item() == pytest.approx(seen * expected, rel=1e-12)


def test_fedntd_loss_three_classes_equals_formula():
    """Row 1, label 0: logits (9, ln 1, ln 3)*tau: q = (1/4, 3/4); teacher (0, 1, 1): q_g = (1/2, 1/2): KL = 1/2 ln 2 +
    1/2 ln 2/3. Row 2, label 2: q = (1/2, 1/2), q_g = (1/4, 3/4). times beta tau^2, mean over the two."""
    tau, beta = 2.0, 3.0
    student = torch.tensor([[9, 0, np.log(3)], [1, 1, -5]], dtype=torch.float64) * tau
    teacher = torch.tensor([[0, 1, 1], [0, np.log(3), 7]], dtype=torch.float64) * tau
    local = looking(out=Output(student), teacher=Output(teacher))
    kl = [
        0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75),
        0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5),
    ]
    found = NotTrueDistillation(beta=beta, tau=tau).loss(local, Batch(None, torch.tensor([0, 2])))
    assert found.item() == pytest.approx(beta * tau**2 * np.mean(kl), rel=1e-12)


def test_fedntd_two_classes_have_no_term():
    local = looking(out=Output(torch.randn(4, 2)), teacher=Output(torch.randn(4, 2)))
    assert NotTrueDistillation().loss(local, Batch(None, torch.tensor([0, 1, 1, 0]))).item() == 0


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_fedntd_one_logit_has_no_term(shape):
    local = looking(out=Output(torch.randn(shape)), teacher=Output(torch.randn(shape)))
    assert (
        NotTrueDistillation()
        .loss(local, Batch(None, torch.tensor([False, True, True, False])))
        .item()
        == 0
    )
