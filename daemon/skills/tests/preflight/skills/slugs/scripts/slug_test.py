import faker
