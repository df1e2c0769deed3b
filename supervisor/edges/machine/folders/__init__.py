"""Where does each thing of a supervisor lie, is that place safe, and which supervisor has it?"""
