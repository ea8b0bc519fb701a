"""Default size of a KV cache: a share of the memory that is free once the model is loaded, and no more than can be used.

On a GPU nearly all that is free is the cache's, but for a workspace (attention's, recorded decodes, float32 logits). On a CPU a
share is, since swapped KV, the page cache and other services live there, too. Workers that share the memory divide it, also
where they start at once: each counts the others, whose memory is not taken yet. Nothing uses more than `max_num_seqs` contexts.
Source: vLLM profiles memory after loading and gives the cache the rest (PagedAttention: Kwon et al., SOSP 2023, section 5).
"""

from __future__ import annotations

#: Of the memory that is free.
CPU_SHARE = 0.25
CUDA_SHARE = 0.9


def auto_kv_bytes(free_bytes: int, share: float, workers: int, workspace_bytes: int, most_bytes: int) -> int:
    """Return the bytes of a KV cache.

    Args:
        free_bytes: free bytes of the memory, with the model loaded.
        share: share of these that caches take.
        workers: workers that divide it.
        workspace_bytes: bytes that each worker leaves free beside the share.
        most_bytes: the most bytes that can be used.
    """
    own = int(free_bytes * share) // workers - workspace_bytes
    return max(0, min(own, most_bytes))


def usable_kv_bytes(context_length: int, max_num_seqs: int, block_size: int, token_bytes: int) -> int:
    """Return the KV of so many sequences that fill the context, in whole blocks."""
    return max_num_seqs * -(-context_length // block_size) * block_size * token_bytes
