#!/usr/bin/perl
# Does the same as nested.c.
use strict;
use warnings;
use JSON::PP;
use MIME::Base64;

my (undef, $said, undef, $heard) = @ARGV[-4 .. -1];
open my $worker, '>', $said  or die "$said: $!";
open my $reply,  '<', $heard or die "$heard: $!";

sub tell_worker { syswrite $worker, pack 'N/a*', encode_json([@_]) }

sub hear {
    read($reply, my $length, 4) == 4 or exit;
    read $reply, my $frame, unpack 'N', $length;
    return decode_json($frame)->[1];
}

sub ask { tell_worker(@_); return hear() }

my $task = hear();
my ($role, $number) = @{ $task->{proc_pargs} };
if ($role eq 'successor' || $number == 0) {
    ask('publish_string', { index => 0, str => encode_base64($number + 1, '') });
} else {
    my %another = (executor_name => 'proc', command => $task->{command});
    my $child = ask('spawn', { %another, proc_pargs => ['nested', $number - 1] });
    my $opened;
    until (defined(($opened = ask('open_ref', { ref => $child }))->{filename})) {
        tell_worker('tail_spawn',
            { executor_name => 'proc', is_fixed => JSON::PP::true, extra_dependencies => [$child] });
        tell_worker('exit', { keep_process => 'must_keep' });
        hear();
    }
    open my $file, '<', $opened->{filename} or die "$opened->{filename}: $!";
    tell_worker('tail_spawn', { %another, proc_pargs => ['successor', 0 + <$file>] });
}
tell_worker('exit', { keep_process => 'no' });
