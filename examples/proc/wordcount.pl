#!/usr/bin/perl
# Count the words of an object: a task in Perl that uses only modules of Perl itself.
use strict;
use warnings;
use JSON::PP;
use MIME::Base64;

my (undef, $said, undef, $heard) = @ARGV[-4 .. -1];
open my $worker, '>', $said  or die "$said: $!";    # in this order, as the worker's
open my $reply,  '<', $heard or die "$heard: $!";

sub tell_worker { syswrite $worker, pack 'N/a*', encode_json([@_]) }

sub hear {    # return the arguments of a reply, or of start_task
    read($reply, my $length, 4) == 4 or exit;
    read $reply, my $frame, unpack 'N', $length;
    return decode_json($frame)->[1];
}

sub ask { tell_worker(@_); return hear() }

my $ref = hear()->{proc_pargs}[0];
my $opened;
until (defined(($opened = ask('open_ref', { ref => $ref }))->{filename})) {    # suspended
    tell_worker('tail_spawn',
        { executor_name => 'proc', is_fixed => JSON::PP::true, extra_dependencies => [$ref] });
    tell_worker('exit', { keep_process => 'must_keep' });
    hear();
}
open my $text, '<', $opened->{filename} or die "$opened->{filename}: $!";
my $words = 0;
while (<$text>) { my @line = split; $words += @line }
ask('publish_string', { index => 0, str => encode_base64("$words\n", '') });
tell_worker('exit', { keep_process => 'no' });
