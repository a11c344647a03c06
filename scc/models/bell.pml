/* bell.pml: a core that sleeps until its bell rings misses no news, as in mpb.c.
 *
 * A core polls, and sleeps if it finds no news; two other cores publish news and ring. The bell
 * counts in steps of two and is odd while the core may be asleep. The model shows: when no further
 * step is possible, the core has seen all published news.
 *
 * Shows CIB-31.
 */
#define RINGERS 2
#define NEWS 2 /* published by each of them */

byte told[RINGERS];
byte bell;
bool asleep;
byte looked[RINGERS];

proctype ringer(byte me)
{
    byte shown, news;
    do
    :: news < NEWS ->
        news++;
        told[me] = news;
        d_step { bell = bell + 2; shown = bell }
        do
        :: shown % 2 == 0 -> break
        :: else ->
            d_step {
                if
                :: bell == shown -> bell = shown - 1; shown = 1
                :: else -> shown = bell
                fi
            }
            if
            :: shown == 1 -> asleep = false; break /* the swap succeeded: wake */
            :: shown != 1 && shown % 2 == 0 -> asleep = false; break /* another ringer did it */
            :: else
            fi
        od
    :: else -> break
    od
}

proctype sleeper()
{
    byte seen, shown, i;
end:
    do
    :: seen = bell - bell % 2;
       i = 0;
       do
       :: i < RINGERS -> looked[i] = told[i]; i++
       :: else -> break
       od;
       do
       :: shown = bell;
          if
          :: shown - shown % 2 != seen -> break
          :: else
          fi;
          if
          :: shown % 2 == 0 ->
              d_step {
                  if
                  :: bell == shown -> bell = shown + 1; shown = shown + 1
                  :: else -> shown = 0
                  fi
              }
          :: else
          fi;
          if
          :: shown % 2 == 1 ->
              /* The futex: sleep, unless the register has changed. */
              d_step {
                  if
                  :: bell == shown -> asleep = true
                  :: else
                  fi
              }
end_asleep:   !asleep
          :: else
          fi
       od
    od
}

init
{
    atomic { run sleeper(); run ringer(0); run ringer(1) }
    timeout -> assert(looked[0] == NEWS && looked[1] == NEWS)
}
