"""RL systems. Each module has ``Config``, ``make(env, config) -> Learner``, ``presets`` and ``config_for(env_name)``."""
