"""What the package can do beyond its core. Each folder is an extra, which can be deleted.

The `__init__.py` of an extra registers what it adds, and lists the files outside of its folder that
belong to it as FILES. `seams.import_extras` imports it, and no other code names an extra.
"""
