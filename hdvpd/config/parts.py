"""Every exchangeable part by its name: a new one is its own file, and a line here."""

from hdvpd.config.settings import Parts

DYNAMICS = Parts(
    "dynamics model",
    {
        "interlacer": "hdvpd.dynamics.interlacer:InterlacerSettings",
        "graph_network": "hdvpd.dynamics.graph_network:GraphNetworkSettings",
    },
)

LOCAL_LAYERS = Parts(
    "local layer",
    {
        "attention": "hdvpd.dynamics.graph_attention:GraphAttentionSettings",
        "mp": "hdvpd.dynamics.neighbor_attender:NeighborAttenderSettings",
    },
)

GRAPH_MASKS = Parts(
    "learned mask",
    {
        "grf": "hdvpd.attention.learned.grf:LearnedGrf",
        "rwgnk": "hdvpd.attention.learned.rwgnk:LearnedRwgnk",
        "diffusion": "hdvpd.attention.learned.diffusion:LearnedDiffusion",
    },
)
