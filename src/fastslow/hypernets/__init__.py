"""The hypernetworks of FSG: the fast-net, the slow-nets, and the selective scan inside them."""

from fastslow.hypernets.fast import FastNet as FastNet
from fastslow.hypernets.scan import expm1_ratio as expm1_ratio
from fastslow.hypernets.scan import selective_scan_reference as selective_scan_reference
from fastslow.hypernets.scan_chunked import selective_scan as selective_scan
from fastslow.hypernets.slow import LSTMSlowNet as LSTMSlowNet
from fastslow.hypernets.slow import MambaSlowNet as MambaSlowNet
