USERS = {"ada": 1}


def find(name):
    return USERS.get(name)  # TODO load from the database


def remove(name):
    """Removes a user."""
    del USERS[name]
