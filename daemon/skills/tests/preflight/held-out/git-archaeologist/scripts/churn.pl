#!/usr/bin/perl
use strict;
use warnings;
use Getopt::Long;
use JSON::PP;

GetOptions('top=i' => \(my $top = 10), 'json' => \my $json) or die "usage: churn.pl [--top N] [--json]\n";
my %n;
while (<STDIN>) { chomp; next unless length; $n{$_}++ }
my @k = (sort { $n{$b} <=> $n{$a} || $a cmp $b } keys %n);
splice @k, $top if @k > $top;
if ($json) { print JSON::PP->new->canonical->encode({ map { $_ => $n{$_} } @k }), "\n" }
else       { printf "%5d %s\n", $n{$_}, $_ for @k }
