"""May one of torchrun's agents take part, and if not, which of its settings differs from the others'?"""

from __future__ import annotations

from supervisor.core.elastic.elastic_messages import ElasticRules


def disagreement(own: ElasticRules, others: ElasticRules) -> str:
    """Returns in what they differ; "" if in nothing but how long each waits, which is its own affair."""
    different = [
        f"{name} is {getattr(own, name):g} here and {getattr(others, name):g} on the other nodes"
        for name in own.__struct_fields__
        if name != "join_timeout_s" and getattr(own, name) != getattr(others, name)
    ]
    return f"{'; '.join(different)}; start all nodes with the same --nnodes and --rdzv-conf" if different else ""
