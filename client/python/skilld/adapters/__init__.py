"""Skill tools in the forms that agent frameworks and model SDKs take, one module for each of them.

Importing a module imports no framework. Its functions do, and say what to install if the framework is missing.
"""
