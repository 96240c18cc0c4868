"""Skill tools in the forms that agent frameworks and model SDKs take, one module for each of them.

Importing a module imports no framework. Its functions do, and say what to install if the framework is missing.

The functions `skill_tools` leave prompts to the framework. The results of a session whose tools are taken first contain
the text of loaded skills.
"""
