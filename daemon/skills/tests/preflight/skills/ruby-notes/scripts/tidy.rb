#!/usr/bin/env ruby
require 'yaml'
require 'fileutils'
system("prettier", "--write", ARGV[0])
puts Dir[File.join(ARGV[0], "*.md")].sort
