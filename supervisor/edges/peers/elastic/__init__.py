"""How do torchrun's agents find and reach the leader of their rendezvous?"""
