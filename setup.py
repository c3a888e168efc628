"""Map the folders of this repository to import names; the metadata is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = {
    "multigrid": "projects/multigrid",
    "slowfast_patches": "slowfast_patches",
    "slowfast_patches.tools": "tools",
    "slowfast_patches.configs": "configs",
}

setup(
    packages=sorted({*FOLDERS, *find_packages("projects"), *find_packages(include=["slowfast_*"])}),
    package_dir=FOLDERS,
    package_data={
        "slowfast_patches.configs": ["*/*.yaml"],
        "slowfast_patches.experiments": ["*.yaml"],
        "": ["py.typed", "options.toml", "published.yaml"],
        "slowfast_patches": ["weights/*/*"],
    },
)
