"""How do torchrun's agents, which start and watch their own workers, meet in a rendezvous of ours?"""
