"""Forward and backward pass of the transformer, written out by hand.

Promise: `backward` gives the exact gradient of what `forward` computes, in the parameters' own precision. Causal
attention with a linear distance bias (ALiBi), RMS normalisation, squared ReLU, tied output embedding; each position
also sees its predecessor's embedding (`smear`). Knows nothing of losses, batches' order or sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from platoon.service.numpy_engine.shape import Array, ModelShape

NORM_EPS = 1e-5


@dataclass
class LayerTrace:
    """What a layer's backward pass needs."""

    normed_att: Array
    scale_att: Array
    q: Array
    k: Array
    v: Array
    probs: Array
    mixed: Array
    normed_ff: Array
    scale_ff: Array
    relu: Array


@dataclass
class Trace:
    """One forward pass over `tokens` (B, T): everything the backward pass reads, and `normed` (B, T, d), its output."""

    tokens: npt.NDArray[np.integer]
    layers: list[LayerTrace] = field(default_factory=list)
    normed: Array = field(default_factory=lambda: np.zeros(0))
    scale: Array = field(default_factory=lambda: np.zeros(0))


def forward(shape: ModelShape, params: Mapping[str, Array], tokens_BT: Array, bias_HTT: Array) -> Trace:
    """Hidden states of every position. Positions after a sequence's end (padding) change nothing before them."""
    batch, length = tokens_BT.shape
    embed_BTd = params["embed"][tokens_BT]
    x = embed_BTd.copy()
    x[:, 1:] += params["smear"] * embed_BTd[:, :-1]
    x = x.reshape(batch * length, shape.width)
    trace = Trace(tokens_BT)
    for layer in range(shape.layers):
        normed_att, scale_att = _normalise(x)
        qkv = (normed_att @ params[f"qkv{layer}"]).reshape(batch, length, 3, shape.heads, shape.head_width)
        q, k, v = np.ascontiguousarray(qkv.transpose(2, 0, 3, 1, 4))
        q *= x.dtype.type(shape.head_width**-0.5)
        probs = q @ k.transpose(0, 1, 3, 2)
        probs += bias_HTT[:, :length, :length]
        probs -= probs.max(axis=-1, keepdims=True)
        np.exp(probs, out=probs)
        probs /= probs.sum(axis=-1, keepdims=True)
        mixed = _join_heads(probs @ v)
        x = x + mixed @ params[f"out{layer}"]
        normed_ff, scale_ff = _normalise(x)
        relu = np.maximum(normed_ff @ params[f"up{layer}"], 0)
        x = x + np.square(relu) @ params[f"down{layer}"]
        trace.layers.append(LayerTrace(normed_att, scale_att, q, k, v, probs, mixed, normed_ff, scale_ff, relu))
    trace.normed, trace.scale = _normalise(x)
    return trace


def log_probabilities(params: Mapping[str, Array], normed_Nd: Array, targets_N: Array) -> tuple[Array, Array]:
    """Log-probability of each target, and the full distribution (N, V) at these positions."""
    logits_NV = (normed_Nd * params["gain"]) @ params["embed"].T
    logits_NV -= logits_NV.max(axis=-1, keepdims=True)
    picked_N = logits_NV[np.arange(len(targets_N)), targets_N]
    probs_NV = np.exp(logits_NV, out=logits_NV)
    total_N = probs_NV.sum(axis=-1)
    probs_NV /= total_N[:, None]
    return picked_N - np.log(total_N), probs_NV


def output_gradient(
    params: Mapping[str, Array],
    grads: Mapping[str, Array],
    normed_Nd: Array,
    probs_NV: Array,
    targets_N: Array,
    coef_N: Array,
) -> Array:
    """Gradient of sum(coef x logp) by `normed_Nd`; adds the output layer's to `grads`. Overwrites `probs_NV`."""
    probs_NV *= -coef_N[:, None]
    probs_NV[np.arange(len(targets_N)), targets_N] += coef_N
    grads["embed"][:] += probs_NV.T @ (normed_Nd * params["gain"])
    into_Nd = probs_NV @ params["embed"]
    grads["gain"][:] += np.einsum("nd,nd->d", into_Nd, normed_Nd)
    return into_Nd * params["gain"]


def backward(
    shape: ModelShape, params: Mapping[str, Array], grads: Mapping[str, Array], trace: Trace, dnormed: Array
) -> None:
    """Add to `grads` the gradient that arrives as `dnormed` (B x T, d) at the final normalised states."""
    batch, length = trace.tokens.shape
    dx = _normalise_backward(dnormed, trace.normed, trace.scale)
    for layer in range(shape.layers - 1, -1, -1):
        seen = trace.layers[layer]
        dup = dx @ params[f"down{layer}"].T
        grads[f"down{layer}"][:] += np.square(seen.relu).T @ dx
        dup *= seen.relu
        dup *= 2
        grads[f"up{layer}"][:] += seen.normed_ff.T @ dup
        dx = dx + _normalise_backward(dup @ params[f"up{layer}"].T, seen.normed_ff, seen.scale_ff)
        grads[f"out{layer}"][:] += seen.mixed.T @ dx
        dqkv = _attention_backward(seen, dx @ params[f"out{layer}"].T, (batch, shape.heads, length, shape.head_width))
        grads[f"qkv{layer}"][:] += seen.normed_att.T @ dqkv
        dx = dx + _normalise_backward(dqkv @ params[f"qkv{layer}"].T, seen.normed_att, seen.scale_att)
    _embedding_backward(params, grads, trace.tokens, dx.reshape(batch, length, shape.width))


def _attention_backward(seen: LayerTrace, dmixed: Array, dims: tuple[int, int, int, int]) -> Array:
    batch, heads, length, head_width = dims
    by_head = (batch, length, heads, head_width)
    dmixed_BHTh = np.ascontiguousarray(dmixed.reshape(by_head).transpose(0, 2, 1, 3))
    mixed_BHTh = seen.mixed.reshape(by_head).transpose(0, 2, 1, 3)
    dv = seen.probs.transpose(0, 1, 3, 2) @ dmixed_BHTh
    dscores = dmixed_BHTh @ seen.v.transpose(0, 1, 3, 2)
    # sum_j P_ij dP_ij equals the output's own product with its gradient: no pass over (T, T) is needed for it.
    dscores -= np.einsum("bhtc,bhtc->bht", dmixed_BHTh, mixed_BHTh)[..., None]
    dscores *= seen.probs
    dq = dscores @ seen.k
    dq *= dq.dtype.type(head_width**-0.5)
    dk = dscores.transpose(0, 1, 3, 2) @ seen.q
    return np.stack([dq, dk, dv]).transpose(1, 3, 0, 2, 4).reshape(batch * length, 3 * heads * head_width)


def _embedding_backward(
    params: Mapping[str, Array], grads: Mapping[str, Array], tokens_BT: Array, dx_BTd: Array
) -> None:
    before_BTd = params["embed"][tokens_BT[:, :-1]]
    grads["smear"][:] += np.einsum("btd,btd->d", dx_BTd[:, 1:], before_BTd)
    dembed_BTd = dx_BTd.copy()
    dembed_BTd[:, :-1] += params["smear"] * dx_BTd[:, 1:]
    _add_rows(grads["embed"], tokens_BT.reshape(-1), dembed_BTd.reshape(-1, dx_BTd.shape[-1]))


def _add_rows(table_Vd: Array, rows_N: Array, values_Nd: Array) -> None:
    """table[rows] += values with repeated rows: sorted segments, many times faster than `np.add.at`."""
    order = np.argsort(rows_N, kind="stable")
    rows_N = rows_N[order]
    starts = np.flatnonzero(np.concatenate([[True], rows_N[1:] != rows_N[:-1]]))
    table_Vd[rows_N[starts]] += np.add.reduceat(values_Nd[order], starts, axis=0)


def _join_heads(x_BHTh: Array) -> Array:
    batch, heads, length, head_width = x_BHTh.shape
    joined: Array = x_BHTh.transpose(0, 2, 1, 3).reshape(batch * length, heads * head_width)
    return joined


def _normalise(x_Nd: Array) -> tuple[Array, Array]:
    scale_N1 = np.einsum("nd,nd->n", x_Nd, x_Nd)[:, None]
    scale_N1 = 1 / np.sqrt(scale_N1 / x_Nd.dtype.type(x_Nd.shape[1]) + x_Nd.dtype.type(NORM_EPS))
    return x_Nd * scale_N1, scale_N1


def _normalise_backward(dy_Nd: Array, y_Nd: Array, scale_N1: Array) -> Array:
    along_N1 = np.einsum("nd,nd->n", dy_Nd, y_Nd)[:, None] / dy_Nd.dtype.type(dy_Nd.shape[1])
    dx_Nd: Array = (dy_Nd - y_Nd * along_N1) * scale_N1
    return dx_Nd
