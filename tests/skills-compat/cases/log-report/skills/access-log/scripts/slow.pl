#!/usr/bin/perl
# Prints the mean time of each path, slowest first.
use strict;
use warnings;

my (%time, %count);
while (<>) {
    next unless /^\S+ \d{3} (\d+) (\S+)/;
    $time{$2} += $1;
    $count{$2}++;
}
my %mean = map { $_ => $time{$_} / $count{$_} } keys %time;
printf "%.1f ms %s\n", $mean{$_}, $_ for sort { $mean{$b} <=> $mean{$a} } keys %mean;
