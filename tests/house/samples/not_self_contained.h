// A header that uses std::string without including it: what the self-containment check must refuse.
#pragma once

inline std::string not_self_contained() { return {}; }
