"""The devices that TensorFlow sees, by their full names."""


def server_device(device: str | None = None) -> str:
    """Returns the full name of a device; the first GPU where None, else the CPU."""
    import tensorflow as tf

    if device is None:
        gpus = tf.config.list_logical_devices("GPU")
        device = gpus[0].name if gpus else "/device:CPU:0"
    return resolve(device, "server_device")


def resolve(device: str, argument: str = "devices") -> str:
    """Returns the full name of a device, of which an end may be given."""
    import tensorflow as tf

    known = [device.name for device in tf.config.list_logical_devices()]
    for name in known:
        if name == device or name.endswith(device.removeprefix("/device:")):
            return name
    raise ValueError(
        f"{argument}: TensorFlow sees no device {device!r}; it sees {', '.join(known)}"
    )
