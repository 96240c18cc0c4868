import store.users


def place(user):
    # TODO: check the stock
    return {"user": user, "known": store.users.find(user) is not None}
