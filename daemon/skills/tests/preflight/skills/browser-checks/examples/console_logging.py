from playwright.sync_api import sync_playwright
import colorama
