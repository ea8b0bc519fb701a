"""What we use of the library `flashinfer`, computed by torch on a CPU, after its documentation.

A decode wrapper for recorded decodes reads its buffers each time it runs, as the kernels do; all else is what was planned.
"""

from __future__ import annotations

from typing import Any

import torch

#: Constructor calls by name of the wrapper, for tests that ask.
made: list[str] = []


@torch.library.custom_op("fake_flashinfer::attend", mutates_args=())
def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_starts: torch.Tensor,
    page_starts: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    causal: bool,
    scale: float,
    window_left: int,
    soft_cap: float,
) -> torch.Tensor:
    """Attend rows of queries `[tokens, heads, dim]` to pages `[page, kv_head, position, dim]`."""
    output = torch.empty_like(query)
    size = keys.shape[2]
    starts, page_at = query_starts.tolist(), page_starts.tolist()
    for row, last in enumerate(last_page_len.tolist()):
        used = pages[page_at[row] : page_at[row + 1]].long()
        assert len(used) and 1 <= last <= size
        kv_len = (len(used) - 1) * size + last
        mine = query[starts[row] : starts[row + 1]]
        group = mine.shape[1] // keys.shape[1]
        # [kv_head, positions, dim], for each query head
        context = [
            part[used].transpose(0, 1).flatten(1, 2)[:, :kv_len].repeat_interleave(group, dim=0).double()
            for part in (keys, values)
        ]
        scores = torch.einsum("qhd,hkd->hqk", mine.double(), context[0]) * scale
        if soft_cap > 0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        query_at, key_at = torch.arange(len(mine))[:, None], torch.arange(kv_len)
        seen = torch.ones(len(mine), kv_len, dtype=torch.bool)
        if causal:
            seen &= key_at <= kv_len - len(mine) + query_at
        if window_left >= 0:
            seen &= key_at + len(mine) + window_left >= kv_len + query_at
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        output[starts[row] : starts[row + 1]] = torch.einsum("hqk,hkd->qhd", weights, context[1]).to(query.dtype)
    return output


class _Wrapper:
    def __init__(self, workspace: torch.Tensor, kv_layout: str, backend: str) -> None:
        assert workspace.dtype is torch.uint8 and not workspace.any()
        assert (kv_layout, backend) == ("HND", "fa2")
        made.append(type(self).__name__)

    def _keep(
        self,
        pages: tuple[torch.Tensor, ...],
        shape: tuple[int, ...],
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert all(part.dtype is torch.int32 and part.device.type == "cpu" for part in pages)
        self._shape, self._dtypes = shape, (q_data_type, kv_data_type)
        self._options = sm_scale, window_left, logits_soft_cap

    def _run(
        self,
        causal: bool,
        query: torch.Tensor,
        pages: tuple[torch.Tensor, torch.Tensor],
        *buffers: torch.Tensor,
    ) -> torch.Tensor:
        keys, values = pages
        query_heads, kv_heads, dim, size = self._shape
        assert query.shape[1:] == (query_heads, dim) and query.is_contiguous()
        assert keys.shape[1:] == values.shape[1:] == (kv_heads, size, dim)
        assert keys.stride() == values.stride() and keys.stride(-1) == 1
        assert (query.dtype, keys.dtype) == self._dtypes
        return _attend(query, keys, values, *buffers, causal, *self._options)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Rows of any number of queries."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", *, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        **options: Any,
    ) -> None:
        self._causal = causal
        self._buffers = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        self._keep(self._buffers, (num_qo_heads, num_kv_heads, head_dim_qk, page_size), **options)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self._run(self._causal, q, paged_kv_cache, *self._buffers)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """One query a row, a fixed number of rows."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        *,
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor,
        paged_kv_indices_buffer: torch.Tensor,
        paged_kv_last_page_len_buffer: torch.Tensor,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        assert use_cuda_graph and use_tensor_cores
        assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
        self._buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        self._query_starts = torch.arange(len(paged_kv_indptr_buffer), dtype=torch.int32)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **options: Any,
    ) -> None:
        assert len(last_page_len) == len(self._buffers[2]), "the number of rows is fixed"
        assert len(indices) <= len(self._buffers[1])
        self._buffers[0].copy_(indptr)
        self._buffers[1].fill_(1 << 20)
        self._buffers[1][: len(indices)].copy_(indices)
        self._buffers[2].copy_(last_page_len)
        self._keep((indptr, indices, last_page_len), (num_qo_heads, num_kv_heads, head_dim, page_size), **options)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self._run(False, q, paged_kv_cache, self._query_starts, *self._buffers)
