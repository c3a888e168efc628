"""Re-export for train/, which moves next."""

from slowfast_patches.utils.errors import explain_machine_error as explain_machine_error
