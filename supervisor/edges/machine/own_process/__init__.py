"""What does the supervisor's own process need: signals, systemd, descriptors, threads, standard streams?"""
