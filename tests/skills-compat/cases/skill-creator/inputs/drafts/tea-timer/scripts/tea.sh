#!/bin/sh
echo "$1: 3 minutes"
