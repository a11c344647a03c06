#!/usr/bin/perl
# Count the words of an object: a task in Perl that uses only modules of Perl itself.
use strict;
use warnings;
use JSON::PP;
use MIME::Base64;

my (undef, $write_fifo, undef, $read_fifo) = @ARGV[-4 .. -1];
open my $to_worker,   '>', $write_fifo or die "$write_fifo: $!";    # the worker opens in this order, too
open my $from_worker, '<', $read_fifo  or die "$read_fifo: $!";

sub send_message { syswrite $to_worker, pack 'N/a*', encode_json([@_]) }

sub receive {    # return the arguments of a reply, or of start_task
    read($from_worker, my $length, 4) == 4 or exit;
    read $from_worker, my $frame, unpack 'N', $length;
    return decode_json($frame)->[1];
}

sub call { send_message(@_); return receive() }

my $ref = receive()->{proc_pargs}[0];
my $opened;
until (defined(($opened = call('open_ref', { ref => $ref }))->{filename})) {    # it does not exist: wait in place
    send_message('tail_spawn',
        { executor_name => 'proc', is_fixed => JSON::PP::true, extra_dependencies => [$ref] });
    send_message('exit', { keep_process => 'must_keep' });
    receive();
}
open my $text, '<', $opened->{filename} or die "$opened->{filename}: $!";
my $words = 0;
while (<$text>) { my @line = split; $words += @line }
call('publish_string', { index => 0, str => encode_base64("$words\n", '') });
send_message('exit', { keep_process => 'no' });
