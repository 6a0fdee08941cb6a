// Operators that Python calls: what a loop costs, and who runs Python meanwhile.
#include "rank/clock/clock.h"

// The units of a frame's code are counted up to a limit, as if it were run through once. From this number of operators
// per run on, a frame that calls more has a loop, such as an optimizer's over its parameters, and goes through code
// again.
#define FRAME_CALLS 8

void ph_called_from_python(void) {
  ph_await_interpreter();
  if (++ph_self.called > FRAME_CALLS) ph_charge(PH_API_PY_LOOP);
}
