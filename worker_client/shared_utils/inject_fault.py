"""Where do scripts that moved over by changing one import find the injection of faults?"""

from worker_client.inprocess.tools.inject_fault import Fault, inject_fault

__all__ = ["Fault", "inject_fault"]
