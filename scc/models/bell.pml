/* bell.pml: whoever sleeps on a bell does not sleep through what it was rung for, as in mpb.c.
 *
 * A core looks, and sleeps if there was nothing; two others tell it something and ring. The bell
 * counts by twos and is odd while somebody may be asleep. Shown: when nothing can happen any more,
 * all that was told was seen.
 */
#define RINGERS 2
#define NEWS 2 /* that each of them tells */

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
            :: shown == 1 -> asleep = false; break /* the swap went well: wake */
            :: shown != 1 && shown % 2 == 0 -> asleep = false; break /* another one has done it */
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
              /* The futex: asleep, unless the register does not hold that any more. */
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
