"""Skill tools in the forms that agent frameworks and model SDKs take, one module for each of them.

Importing a module imports no framework. Its functions do, and say what to install if the framework is missing.

The functions `skill_tools` leave prompts to the framework, so that results have to contain the text of loaded skills:
open their sessions with `Skills(inline_skills=True)`.
"""
