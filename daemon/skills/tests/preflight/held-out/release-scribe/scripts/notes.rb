#!/usr/bin/env ruby
# frozen_string_literal: true

require 'optparse'
require 'open3'
require 'octokit'
require 'tty-table'
require_relative 'lib/labels'

since = nil
OptionParser.new { |o| o.on('--since TAG') { |v| since = v } }.parse!

log, status = Open3.capture2('git', 'log', "#{since}..HEAD", '--merges', '--format=%s')
abort 'git log failed' unless status.success?

repo = `git config --get remote.origin.url`.strip[%r{github\.com[:/](.+?)(\.git)?$}, 1]
gh = Octokit::Client.new(access_token: ENV.fetch('GITHUB_TOKEN'))

rows = log.scan(/#(\d+)/).flatten.map do |n|
  pr = gh.pull_request(repo, n.to_i)
  [Labels.section(pr.labels.map(&:name)), pr.title, "@#{pr.user.login}"]
end
rows.group_by(&:first).each do |sec, items|
  puts "## #{sec}", *items.map { |_, t, u| "- #{t} (#{u})" }, ''
end
warn TTY::Table.new(%w[section title by], rows).render(:ascii) if ENV['DEBUG']
