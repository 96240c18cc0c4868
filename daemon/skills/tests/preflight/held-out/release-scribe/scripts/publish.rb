#!/usr/bin/env ruby
require 'shellwords'
require 'tempfile'

tag, file = ARGV
if system('command -v vale > /dev/null 2>&1')
  system('vale', '--minAlertLevel=error', file)
end

# mail version is plain text
plain = %x(pandoc -f gfm -t plain --wrap=auto #{file.shellescape})
File.write("#{file}.txt", plain)

ok = system('gh', 'release', 'create', tag, '--draft', '--notes-file', file, exception: false)
abort 'gh failed' unless ok
system("git tag --list #{tag.shellescape} | grep -q . || echo 'remember to push the tag' >&2")
