"""Who decides for a rank that no launcher supervises: where is that process, how is it started, who replaces it?"""
