"""The plug-in for users who keep torchrun: `torchrun --rdzv-backend=holdfast`."""
