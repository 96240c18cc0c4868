#!/usr/bin/env perl
use v5.30;
use warnings;
use JSON::PP qw(decode_json);
use File::Basename;

for my $f (@ARGV) {
    my $info = decode_json(qx{mediainfo --Output=JSON "$f"});
    my ($a) = grep { $_->{'@type'} eq 'Audio' } @{ $info->{media}{track} };
    open(my $p, '-|', 'sh', '-c', 'ffmpeg -nostats -i "$1" -af ebur128 -f null - 2>&1', '_', $f) or die $!;
    my $i;
    while (<$p>) { $i = $1 if /I:\s+(-?[\d.]+) LUFS/ }
    close $p;
    printf "%-30s %s Hz %6.1f LUFS\n", basename($f), $a->{SamplingRate} // '?', $i // 0;
}
