"""Small MViT with the interface of a later release: attributes, tables of positions, assertions.

Relative positions are resized to the map of each layer. Absolute positions fit one shape of clips.
"""

import math
from ast import literal_eval

import torch
from torch import nn
from torch.nn import functional as F

DEFAULTS = {
    "PATCH_KERNEL": [3, 7, 7],
    "PATCH_STRIDE": [2, 4, 4],
    "PATCH_PADDING": [1, 3, 3],
    "EMBED_DIM": 32,
    "NUM_HEADS": 2,
    "DEPTH": 2,
    "POOL_Q_STRIDE": [[1, 1, 2, 2]],
    "POOL_KV_STRIDE": [],
    "POOL_KV_STRIDE_ADAPTIVE": [1, 2, 2],
    "CLS_EMBED_ON": True,
    "USE_ABS_POS": True,
    "SEP_POS_EMBED": False,
    "REL_POS_SPATIAL": True,
    "REL_POS_TEMPORAL": True,
    "REV": {"ENABLE": False},
}


class PatchEmbed(nn.Module):
    def __init__(self, width, kernel, stride, padding):
        super().__init__()
        self.proj = nn.Conv3d(3, width, kernel, stride, padding)

    def forward(self, x):
        maps = self.proj(x)
        return maps.flatten(2).transpose(1, 2), maps.shape


class Pool(nn.Module):
    """Pool tokens (N, heads, 1 + T·H·W, C) by a strided convolution, except the class token."""

    def __init__(self, width, stride):
        super().__init__()
        self.pool = nn.Conv3d(width, width, 3, stride, 1, groups=width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, sides):
        first, maps = tokens[:, :, :1], tokens[:, :, 1:]
        pooled = self.pool(maps.flatten(0, 1).transpose(1, 2).unflatten(2, tuple(sides)))
        maps = pooled.flatten(2).transpose(1, 2).unflatten(0, tokens.shape[:2])
        return self.norm(torch.cat((first, maps), 2)), list(pooled.shape[2:])


class RelativePositions(nn.Module):
    """Bias of attention along one axis, from a table with a row for each distance."""

    def __init__(self, longest, width):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(2 * longest - 1, width))

    def forward(self, queries, keys):
        """Return the rows for each pair of places on maps of `queries` and `keys` places."""
        longest = max(queries, keys)
        table = F.interpolate(self.table.T[None], 2 * longest - 1, mode="linear")[0].T
        places = [torch.arange(n) * (longest / n) for n in (queries, keys)]
        return table[(places[0][:, None] - places[1] + places[1][-1]).long()]


class Block(nn.Module):
    def __init__(self, width, heads, sides, stride_q, stride_kv, spatial, temporal):
        super().__init__()
        self.heads, size = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.pools = nn.ModuleList([Pool(size, s) for s in (stride_q, stride_kv, stride_kv)])
        self.pool_skip = nn.MaxPool3d(
            [s + (s > 1) for s in stride_q], stride_q, [s // 2 for s in stride_q]
        )
        axes = [
            side for side, is_on in zip(sides, (temporal, spatial, spatial), strict=True) if is_on
        ]
        self.relative = nn.ModuleList([RelativePositions(side, size) for side in axes])
        self.first_axis = 0 if temporal else 1
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, sides):
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        (q, q_sides), (k, k_sides), (v, _) = (
            pool(tokens, sides) for pool, tokens in zip(self.pools, qkv, strict=True)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        for axis, positions in enumerate(self.relative, self.first_axis):
            rows = positions(q_sides[axis], k_sides[axis])
            maps = q[:, :, 1:].unflatten(2, tuple(q_sides)).movedim(2 + axis, 4)
            bias = torch.einsum("nhabqc,qkc->nhabqk", maps, rows).movedim(4, 2 + axis)
            wide = [side if place == axis else 1 for place, side in enumerate(k_sides)]
            bias = bias.unflatten(5, tuple(wide)).expand(*bias.shape[:5], *k_sides)
            scores[:, :, 1:, 1:] = scores[:, :, 1:, 1:] + bias.flatten(5).flatten(2, 4)
        attended = (scores.softmax(3) @ v + q).transpose(1, 2).flatten(2)
        skipped = self.pool_skip(x[:, 1:].transpose(1, 2).unflatten(2, tuple(sides)))
        skipped = torch.cat((x[:, :1], skipped.flatten(2).transpose(1, 2)), 1)
        x = skipped + self.proj(attended)
        return x + self.mlp(self.norm2(x)), q_sides


class MViT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        mvit = cfg.MVIT
        self.cfg = cfg
        self.patch_stride = list(_numbers(mvit.PATCH_STRIDE))
        frames, crop = cfg.DATA.NUM_FRAMES, cfg.DATA.TRAIN_CROP_SIZE
        sides = [s // p for s, p in zip((frames, crop, crop), self.patch_stride, strict=True)]
        self.patch_dims, (self.T, self.H, self.W) = sides, sides
        width = mvit.EMBED_DIM
        kernel, padding = _numbers(mvit.PATCH_KERNEL), _numbers(mvit.PATCH_PADDING)
        self.patch_embed = PatchEmbed(width, kernel, tuple(self.patch_stride), padding)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        rows = {"pos_embed": 1 + math.prod(sides)}
        if mvit.SEP_POS_EMBED:
            space = sides[1] * sides[2]
            rows = {
                "pos_embed_spatial": space,
                "pos_embed_temporal": sides[0],
                "pos_embed_class": 1,
            }
        for name, count in rows.items() if mvit.USE_ABS_POS else ():
            self.register_parameter(name, nn.Parameter(0.02 * torch.randn(1, count, width)))
        self.blocks = nn.ModuleList()
        stride_kv = mvit.POOL_KV_STRIDE_ADAPTIVE
        strides_q = {layer: stride for layer, *stride in mvit.POOL_Q_STRIDE}
        for layer in range(mvit.DEPTH):
            stride_q = strides_q.get(layer, [1, 1, 1])
            stride_kv = [max(k // q, 1) for k, q in zip(stride_kv, stride_q, strict=True)]
            relative = (mvit.REL_POS_SPATIAL, mvit.REL_POS_TEMPORAL)
            self.blocks.append(Block(width, mvit.NUM_HEADS, sides, stride_q, stride_kv, *relative))
            sides = [side // q for side, q in zip(sides, stride_q, strict=True)]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, cfg.MODEL.NUM_CLASSES)
        self.dropout = nn.Dropout(cfg.MODEL.DROPOUT_RATE)

    def forward(self, x):
        x, shape = self.patch_embed(x[0])
        assert list(shape[2:]) == [self.T, self.H, self.W], shape
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1)
        if self.cfg.MVIT.USE_ABS_POS:
            x = x + self._positions()
        sides = [self.T, self.H, self.W]
        for block in self.blocks:
            x, sides = block(x, sides)
        x = self.head(self.dropout(self.norm(x)[:, 0]))
        return x if self.training else x.softmax(1)

    def _positions(self):
        if not self.cfg.MVIT.SEP_POS_EMBED:
            return self.pos_embed
        t, h, w = self.patch_dims
        in_space = self.pos_embed_spatial.repeat(1, t, 1)
        in_time = self.pos_embed_temporal.repeat_interleave(h * w, 1)
        return torch.cat((self.pos_embed_class, in_space + in_time), 1)


def _numbers(value):
    return tuple(literal_eval(value) if isinstance(value, str) else value)
