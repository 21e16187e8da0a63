"""The optional native kernels; everything else is in pyproject.toml.

A plain shared library without the Python API, loaded through ctypes, so that one build serves every Python. Where no
compiler is found the installation goes on without it and the engine runs on numpy.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/fastslow/deploy/native")
SLOW_NET = Path("src/fastslow/hypernets/csrc")

setup(
    ext_modules=[
        Extension(
            "fastslow.deploy._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
            depends=sorted(str(path) for pattern in ("*.h", "*.inl") for path in NATIVE.glob(pattern)),
            language="c++",
            extra_compile_args=["-std=gnu++17", "-O3", "-g0", "-fvisibility=hidden", "-Wno-psabi", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
        Extension(
            "fastslow.hypernets._native",
            sources=[str(SLOW_NET / "native.cpp")],
            depends=sorted(str(path) for pattern in ("*.h", "*.inc") for path in SLOW_NET.glob(pattern)),
            language="c++",
            # Contraction to fused multiply-adds is off by default in strict ISO mode, and worth a third of the time.
            extra_compile_args=[
                *("-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi", "-pthread"),
            ],
            extra_link_args=["-pthread"],
            optional=True,
        ),
    ]
)
