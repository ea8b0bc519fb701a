"""What iterations cost on a DGX-A100 and a DGX-H100, for those who have no profile.

Written by scripts/built_in_costs.py; the numbers are fits (`profile_fit.py`) of the profile that was published with the paper's
simulator (Patel et al., "Splitwise", ISCA 2024; data CC-BY): BLOOM-176B and Llama2-70B in half precision on eight GPUs.
"""

from __future__ import annotations

from spotwise.core.cost_model import PiecewiseLinear, TableIterationCost

#: By language model, GPU and model of time.
BUILT_IN: dict[tuple[str, str, str], TableIterationCost] = {
    ("bloom-176b", "a100-80gb", "honest"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.079646, 0.099076, 0.17346, 0.28695, 0.53098, 1.3224, 3.5036, 5.7707, 11.229),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.04837, 0.049528, 0.050078, 0.051101, 0.053637, 0.057974, 0.08177)
        ),
        prompt_context_s=2.698e-09,
        decode_context_s=4.0182e-07,
        mixed_factor=None,
    ),
    ("bloom-176b", "a100-80gb", "published"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.079668, 0.099164, 0.17438, 0.28747, 0.53606, 1.3326, 3.5915, 5.782, 11.252),
        ),
        decode=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.047612, 0.047707, 0.049313, 0.049442, 0.050188, 0.051631, 0.054274, 0.06538, 0.096583),
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("bloom-176b", "a100-80gb", "by-batch"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.079668, 0.099164, 0.17438, 0.28747, 0.53606, 1.3326, 3.5915, 5.782, 11.252),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.048764, 0.049991, 0.051004, 0.052953, 0.057341, 0.06538, 0.096583)
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("bloom-176b", "h100-80gb", "honest"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.048226, 0.050945, 0.074554, 0.12912, 0.2366, 0.62312, 1.2969, 2.4919, 4.9365),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.035746, 0.036671, 0.037377, 0.037377, 0.038712, 0.041984, 0.056106)
        ),
        prompt_context_s=7.1493e-09,
        decode_context_s=2.093e-07,
        mixed_factor=None,
    ),
    ("bloom-176b", "h100-80gb", "published"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.048284, 0.051179, 0.076142, 0.13222, 0.25196, 0.6496, 1.4116, 2.5219, 4.9965),
        ),
        decode=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.035739, 0.036154, 0.036166, 0.036334, 0.036739, 0.03753, 0.039016, 0.045842, 0.063821),
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("bloom-176b", "h100-80gb", "by-batch"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.048284, 0.051179, 0.076142, 0.13222, 0.25196, 0.6496, 1.4116, 2.5219, 4.9965),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.036113, 0.036912, 0.038058, 0.038142, 0.04064, 0.045842, 0.063821)
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("llama2-70b", "a100-80gb", "honest"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.065339, 0.066722, 0.094172, 0.15979, 0.28188, 0.70946, 1.7984, 3.5201, 7.5452),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.044392, 0.044392, 0.044986, 0.044986, 0.047158, 0.047158, 0.059422)
        ),
        prompt_context_s=1.0503e-09,
        decode_context_s=3.3048e-07,
        mixed_factor=None,
    ),
    ("llama2-70b", "a100-80gb", "published"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.065347, 0.066757, 0.093016, 0.16086, 0.28271, 0.70836, 1.781, 3.5245, 7.554),
        ),
        decode=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.043031, 0.043483, 0.044797, 0.044797, 0.045697, 0.046473, 0.048471, 0.053017, 0.071605),
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("llama2-70b", "a100-80gb", "by-batch"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.065347, 0.066757, 0.093016, 0.16086, 0.28271, 0.70836, 1.781, 3.5245, 7.554),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.044705, 0.044705, 0.045792, 0.046465, 0.050435, 0.053017, 0.071605)
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("llama2-70b", "h100-80gb", "honest"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.054345, 0.054345, 0.054345, 0.076956, 0.13324, 0.37564, 0.80829, 1.547, 2.9269),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.029554, 0.029976, 0.031214, 0.03136, 0.031879, 0.034044, 0.04101)
        ),
        prompt_context_s=1.1286e-09,
        decode_context_s=2.4823e-07,
        mixed_factor=None,
    ),
    ("llama2-70b", "h100-80gb", "published"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.054567, 0.054567, 0.054567, 0.077684, 0.13442, 0.37622, 0.83149, 1.5517, 2.9363),
        ),
        decode=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.02907, 0.02907, 0.030267, 0.030267, 0.031482, 0.031482, 0.032592, 0.038619, 0.050161),
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
    ("llama2-70b", "h100-80gb", "by-batch"): TableIterationCost(
        prompt=PiecewiseLinear(
            (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            (0.054567, 0.054567, 0.054567, 0.077684, 0.13442, 0.37622, 0.83149, 1.5517, 2.9363),
        ),
        decode=PiecewiseLinear(
            (1, 2, 4, 8, 16, 32, 64), (0.029762, 0.030262, 0.031786, 0.032504, 0.034166, 0.038619, 0.050161)
        ),
        prompt_context_s=0.0,
        decode_context_s=0.0,
        mixed_factor=1.1,
    ),
}
