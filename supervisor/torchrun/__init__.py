"""The plug-in for people who keep torchrun: `torchrun --rdzv-backend=holdfast`."""
