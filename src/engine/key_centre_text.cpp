// Changing this text changes every key index, so it stays as it is.
#include "engine/key_centres.h"

namespace karez {

std::string_view key_centre_text() {
  return R"(Water under the desert

A karez begins at the foot of a mountain, where snow melts into gravel and the ground is wet a few
dozen metres down. A mother well is dug there first. If it fills, the diggers walk away from the
mountain, down a slope so gentle that the eye does not see it, and sink a shaft every twenty or
thirty paces. Between the shafts they cut a tunnel just high enough for a kneeling man. The tunnel
falls one metre in a thousand: steeper, and the water would eat its own bed; flatter, and the mud
would settle and close it. Kilometres later the tunnel meets the surface, and there stands a
village, an orchard, a row of poplars, a mosque. No pump runs. The water arrives before anyone asks
for it, cool, in the dark, and almost none of it is lost to the sun.

"How do you keep the line straight?" the visitor asked.

"Two lamps," said the old man. "You hang them on the rope, one behind the other. When you look back
and see only one flame, you are straight. When you see two, you are going to another village, and
they will not thank you for the water." He laughed. "My father saw two flames once. We still have
cousins there."

She wrote that down. Outside it was 41 degrees; in the tunnel, 14. The shafts had been counted in
1957, again in 1984, and once more in 2003: 1,237 systems at first, then 725, then 404, of which
only 238 still carried water.

## Maintenance

1. Clear the mouth of the channel every spring, before the first irrigation.
2. Inspect each shaft; cover it with brushwood and clay so that sand stays out.
3. Measure the flow (litres per second) at the outlet and write it into the book.
4. Report any change of more than 10 % to the water master.

| month | flow, l/s | shafts cleaned | remarks                  |
| ----- | --------- | -------------- | ------------------------ |
| March | 18.4      | 12             | snow late                |
| April | 22.9      | 31             | roof fell at shaft 17    |
| May   | 27.0      | 6              | none                     |
| June  | 25.3      | 0              | two days of sand storms  |

The same book, kept by a program:

```python
import csv
from dataclasses import dataclass


@dataclass
class Reading:
    month: str
    flow: float          # litres per second
    shafts_cleaned: int = 0

    def change(self, before: "Reading") -> float:
        """Relative change since the reading before."""
        if before.flow == 0:
            raise ValueError(f"no flow in {before.month}")
        return (self.flow - before.flow) / before.flow


def load(path):
    with open(path, newline="") as file:
        return [Reading(row["month"], float(row["flow"]), int(row["shafts"] or 0))
                for row in csv.DictReader(file)]


def alarms(readings, limit=0.10):
    return [now.month for before, now in zip(readings, readings[1:])
            if abs(now.change(before)) > limit]
```

and the part that runs in the pump house of the neighbours, who have no karez:

```c
static int read_level(int fd, uint16_t *level) {
  uint8_t buffer[4] = {0x01, 0x04, 0x00, 0x00};
  if (write(fd, buffer, sizeof buffer) != sizeof buffer) return -1;
  for (int i = 0; i < 3; ++i) {
    if (read(fd, buffer, sizeof buffer) == 4 && buffer[1] == 0x04) {
      *level = (uint16_t)(buffer[2] << 8 | buffer[3]);
      return 0;
    }
    usleep(1000 << i);  /* wait longer each time */
  }
  return -1;
}
```

Its settings and a day of its log:

    [pump]
    device = /dev/ttyS1
    baud = 9600
    start_level_mm = 350
    stop_level_mm = 1200

    2021-06-04T05:58:11Z INFO  pump: started, level 348 mm
    2021-06-04T07:12:40Z WARN  pump: no answer from sensor 2, retry 1 of 3
    2021-06-04T07:12:41Z INFO  pump: sensor 2 answers again
    2021-06-04T09:30:02Z INFO  pump: stopped, level 1201 mm, 3 h 31 min, 44.7 kWh
    {"site": "east", "level": 1201, "ok": true, "errors": [], "next": "2021-06-05T06:00:00Z"}

Question: A tank of 12 cubic metres is filled by a channel that brings 25 litres a second, while a
garden takes 5 litres a second out of it. How long does it take until the tank is full?

Answer: The tank gains 25 - 5 = 20 litres a second. Twelve cubic metres are 12,000 litres, and
12,000 / 20 = 600 seconds, so it takes ten minutes.

Dear Ms. Alvarez,

thank you for your letter of 3 May. We regret that the order (no. 58-2210-B, 40 clay rings, 75 cm)
cannot be delivered before the end of the month, since the kiln at our works in Kerman is being
rebuilt. Should you need some of them sooner, please let us know; a colleague in Yazd has eleven in
stock and would send them at the same price. With kind regards, and the hope of a wet winter.

What the diggers knew, engineers write as an equation: the flow through a slope of gravel is the
product of its conductivity, its cross-section and its gradient, Q = K A dh/dl. For K = 0.002 m/s,
A = 9 square metres and a gradient of one in a hundred that makes 0.00018 cubic metres a second,
which is little; but a tunnel collects it along its whole wet length, day and night, for a thousand
years. Le principe est simple, disait le vieux maitre, et c'est pour cela qu'il dure. Das Wasser
kommt von selbst; man muss ihm nur den Weg zeigen.
)";
}

}  // namespace karez
